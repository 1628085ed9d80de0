//! Files that are read as a whole, and a store's folder with any files in it, as `headwater inspect` shows it.

use std::path::Path;

use headwater_storage::checkpoint::{Checkpoint, MetaCheckpoint};
use headwater_storage::disk::{Disk, SimDisk, read_file};
use headwater_storage::dump;
use headwater_storage::hard_state::HardState;
use headwater_storage::replica_file::ReplicaFile;

use crate::frame::sealed as sealed_frame;
use crate::input::{Input, put_part};
use crate::sample;

const KINDS: usize = 4;

fn originals() -> [Vec<u8>; KINDS] {
    let disk = sample::store();
    let checkpoint = read_file(&disk, Path::new("/store/streams/7/checkpoint")).expect("the sample has one");
    [checkpoint, sample::meta_checkpoint().encode(), sample::hard_state().encode(), sample::replica_file().encode()]
}

/// A kind, whether to put in a right checksum, and the bytes.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    (0u8..)
        .zip(originals())
        .flat_map(|(kind, bytes)| [[&[kind, 0][..], &bytes].concat(), [&[kind, 1][..], &bytes].concat()])
        .collect()
}

/// The bytes with the checksum and length that their file would have.
fn sealed(kind: usize, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match kind {
        0 | 1 => {
            if bytes.len() < 24 {
                return bytes;
            }
            let len = bytes.len() as u64 - 24;
            bytes[..8].copy_from_slice(if kind == 0 { b"HWSTRCKP" } else { b"HWMETCKP" });
            bytes[16..24].copy_from_slice(&len.to_le_bytes());
            let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..]);
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
            bytes
        }
        _ => {
            let prefix: &[u8] = if kind == 2 { b"headwater-hard-state 1 " } else { b"headwater-replica 1 " };
            let json = bytes.get(prefix.len() + 9..).unwrap_or_default();
            [prefix, format!("{:08x}\n", crc32c::crc32c(json)).as_bytes(), json].concat()
        }
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (kind, seal) = (usize::from(input.u8()) % KINDS, input.u8() & 1 == 1);
    let bytes = if seal { sealed(kind, input.rest()) } else { input.rest().to_vec() };
    let path = Path::new("file");
    match kind {
        0 => {
            if let Ok(found) = Checkpoint::decode(path, bytes.clone()) {
                assert_eq!(found.encode(), bytes, "a checkpoint has one encoding");
            }
        }
        1 => {
            if let Ok(found) = MetaCheckpoint::decode(path, bytes.clone()) {
                assert_eq!(found.encode(), bytes, "a checkpoint has one encoding");
            }
        }
        2 => {
            if let Ok(found) = HardState::decode(path, &bytes) {
                assert_eq!(HardState::decode(path, &found.encode()).ok(), Some(found));
            }
        }
        _ => {
            if let Ok(found) = ReplicaFile::decode(path, &bytes) {
                assert_eq!(ReplicaFile::decode(path, &found.encode()).ok(), Some(found));
            }
        }
    }
}

/// Where a store keeps what: names that are its own, and some that only look so.
const NAMES: [&str; 16] = [
    "hard-state",
    "meta/checkpoint",
    "streams/7/checkpoint",
    "replicas/7.replica",
    "streams/7/blocks/0000000001.blk",
    "streams/7/blocks/0000000002.blk",
    "wal/0000000001.wal",
    "wal/0000000002.wal",
    "streams/7/snapshot",
    "streams/7/blocks/18446744073709551615.blk",
    "wal/18446744073709551615.wal",
    "replicas/x.replica",
    "streams/18446744073709551616/checkpoint",
    "wal/0000000003.spare",
    "streams/7.incoming/checkpoint",
    "lock",
];

/// Files: a name, how to seal it, and the bytes, which replace a part of the sample's file of that name.
pub(crate) fn inspect_seeds() -> Vec<Vec<u8>> {
    let disk = sample::store();
    let mut seeds = Vec::new();
    for (at, name) in (0u8..).zip(NAMES) {
        let Ok(file) = read_file(&disk, &Path::new("/store").join(name)) else { continue };
        for seal in [0, 1] {
            let mut seed = vec![at, seal, 0, 0];
            put_part(&mut seed, &file[..file.len().min(6_000)]);
            seeds.push(seed);
        }
    }
    seeds
}

pub(crate) fn inspect(data: &[u8]) {
    let mut input = Input::new(data);
    let disk = sample::store();
    let root = Path::new("/store");
    while !input.is_empty() {
        let (name, seal, offset) = (NAMES[usize::from(input.u8()) % NAMES.len()], input.u8(), input.u16());
        let part = input.part();
        let path = root.join(name);
        let mut bytes = read_file(&disk, &path).unwrap_or_default();
        if seal & 2 == 0 {
            bytes.truncate(usize::from(offset));
        }
        let end = usize::from(offset) + part.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[usize::from(offset)..end].copy_from_slice(part);
        if seal & 1 == 1 {
            bytes = match name {
                "streams/7/checkpoint" => sealed(0, &bytes),
                "meta/checkpoint" => sealed(1, &bytes),
                "hard-state" => sealed(2, &bytes),
                "replicas/7.replica" => sealed(3, &bytes),
                name if name.ends_with(".blk") && bytes.len() > 4_096 => {
                    [&bytes[..4_096], &sealed_frame(&bytes[4_096..])].concat()
                }
                _ => bytes,
            };
        }
        put(&disk, &path, &bytes);
    }
    let whole = dump::inspect(&disk, root);
    assert!(whole.is_ok_and(|dump| !dump.text.is_empty()), "there are files of a store");
    for name in NAMES {
        let _ = dump::inspect(&disk, &root.join(name)).map(|dump| dump.text.len());
    }
}

/// A file with these bytes, whatever was there.
pub(crate) fn put(disk: &SimDisk, path: &Path, bytes: &[u8]) {
    if let Some(dir) = path.parent() {
        disk.create_dir_all(dir).expect("a simulated disk");
    }
    let _ = disk.remove(path);
    let file = disk.create(path).expect("a simulated disk");
    file.write_at(0, bytes).expect("a simulated disk");
}
