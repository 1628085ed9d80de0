//! Indexes of blocks that take no more frames: written behind a checkpoint that covers them, read at a start in the
//! blocks' stead. Derived: whatever is wrong with one costs a reading of its block, and nothing else.

use std::io;
use std::path::Path;

use bytes::Bytes;
use headwater_core::ids::StreamId;
use headwater_core::stream::BlockIndex;

use super::format::{HEADER_PAGE, INDEX_EXTENSION, check_header, index_path, path};
use crate::checkpoint::{BlockExtent, BlockNumber};
use crate::disk::{Disk, read_exact_at, read_file};

/// Removes what is no longer wanted; missing is fine.
pub(crate) fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes an index. It is not synced: one that a crash has torn does not match its checksum.
pub(super) fn write(disk: &dyn Disk, blocks_dir: &Path, extent: BlockExtent, index: &BlockIndex) -> io::Result<()> {
    let path = index_path(blocks_dir, extent.block);
    remove(disk, &path)?;
    disk.create(&path)?.write_at(0, &index.encode())
}

/// Reads a block back and writes its index.
pub(super) fn build(disk: &dyn Disk, blocks_dir: &Path, stream: StreamId, extent: BlockExtent) -> io::Result<()> {
    let file = disk.open_read(&path(blocks_dir, extent.block))?;
    let mut bytes = vec![0; usize::try_from(extent.valid_bytes - HEADER_PAGE).map_err(io::Error::other)?];
    read_exact_at(file.as_ref(), HEADER_PAGE, &mut bytes)?;
    let index = BlockIndex::of_frames(stream, extent.block.get(), HEADER_PAGE as u32, &Bytes::from(bytes));
    index.map_or(Ok(()), |index| write(disk, blocks_dir, extent, &index))
}

/// What says what is in the block file `path`, if it takes no more frames and has its index beside it; see
/// [`BlockIndex::identity`]. Reads a few bytes.
#[must_use]
pub fn block_identity(disk: &dyn Disk, path: &Path) -> Option<u64> {
    let file = disk.open_read(&path.with_extension(INDEX_EXTENSION)).ok()?;
    let len = file.len().ok()?;
    let mut tail = [0; 4];
    read_exact_at(file.as_ref(), len.checked_sub(4)?, &mut tail).ok()?;
    BlockIndex::identity(&tail, len)
}

/// The index of a block, whatever has become of that.
pub(super) fn load_any(disk: &dyn Disk, blocks_dir: &Path, stream: StreamId, block: BlockNumber) -> Option<BlockIndex> {
    let bytes = read_file(disk, &index_path(blocks_dir, block)).ok()?;
    BlockIndex::decode(&bytes).ok().filter(|index| index.block() == (stream, block.get()))
}

/// The index of a block whose file is there, has its header and is as long as the checkpoint says.
pub(super) fn load(disk: &dyn Disk, blocks_dir: &Path, stream: StreamId, extent: BlockExtent) -> Option<BlockIndex> {
    let index = load_any(disk, blocks_dir, stream, extent.block)?;
    let file = disk.open_read(&path(blocks_dir, extent.block)).ok()?;
    let mut page = vec![0; HEADER_PAGE as usize];
    read_exact_at(file.as_ref(), 0, &mut page).ok()?;
    check_header(&page, stream, extent.block).ok()?;
    let is_whole = file.len().ok()? >= extent.valid_bytes;
    (is_whole && index.is_of(stream, extent.block.get(), extent.valid_bytes)).then_some(index)
}
