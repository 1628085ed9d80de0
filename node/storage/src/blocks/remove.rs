//! Removing a stream's files.

use std::path::Path;

use crate::checkpoint::Checkpoint;
use crate::disk::Disk;
use crate::envelope::FileError;

/// Removes everything a stream has on disk, durably. Only after a confirmed removal record.
///
/// # Errors
/// If the disk fails; what is left is then partial, and removing again finishes it.
pub fn remove_stream(disk: &dyn Disk, dir: &Path) -> Result<(), FileError> {
    // The checkpoint first: blocks without one are cut, a checkpoint without its blocks would be damage.
    let checkpoint = Checkpoint::path(dir);
    match disk.remove(&checkpoint) {
        Ok(()) => disk.sync_dir(dir).map_err(|error| FileError::io("sync", dir, error))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(FileError::io("remove", &checkpoint, error)),
    }
    disk.remove_dir_all(dir).map_err(|error| FileError::io("remove", dir, error))?;
    match dir.parent() {
        Some(parent) => disk.sync_dir(parent).map_err(|error| FileError::io("sync", parent, error)),
        None => Ok(()),
    }
}
