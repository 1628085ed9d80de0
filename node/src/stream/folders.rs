//! A replica's folder, and those beside it while a snapshot takes its place.

use std::io;
use std::path::{Path, PathBuf};

use headwater_storage::blocks::remove_stream;
use headwater_storage::disk::Disk;

/// Where a replica's folder is kept while a snapshot takes its place.
fn replaced(dir: &Path) -> PathBuf {
    dir.with_extension("replaced")
}

/// Where a snapshot is staged.
pub(crate) fn incoming(dir: &Path) -> PathBuf {
    dir.with_extension("incoming")
}

pub(crate) fn is_there(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match disk.list(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes all that a stream has on this disk. It stays removed: the names are synced. Blocking.
pub(crate) fn remove(disk: &dyn Disk, dir: &Path) -> Result<(), headwater_storage::FileError> {
    for folder in [incoming(dir), replaced(dir), dir.to_owned()] {
        remove_stream(disk, &folder)?;
    }
    Ok(())
}

/// Puts a complete staged folder in the place of a replica's own, which is kept beside it. Blocking.
pub(crate) fn exchange(disk: &dyn Disk, dir: &Path, staged: &Path) -> io::Result<()> {
    let old = replaced(dir);
    disk.remove_dir_all(&old)?;
    disk.rename(dir, &old)?;
    // A crash here leaves no folder: `settle` puts the old one back.
    disk.rename(staged, dir)?;
    sync_names(disk, dir)
}

/// The folder that a snapshot replaced is not needed any more. Blocking.
pub(crate) fn drop_replaced(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.remove_dir_all(&replaced(dir))
}

/// Puts the folder that a snapshot replaced back in its place. Blocking.
pub(crate) fn put_back(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    disk.remove_dir_all(dir)?;
    disk.rename(&replaced(dir), dir)?;
    sync_names(disk, dir)
}

/// Ends what a crash interrupted: a snapshot that was on its way, or half put in place. True if what it replaced is
/// still there, beside it. Blocking.
pub(crate) fn settle(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    disk.remove_dir_all(&incoming(dir))?;
    let before = is_there(disk, &replaced(dir))?;
    if before && !is_there(disk, dir)? {
        put_back(disk, dir)?;
        return Ok(false);
    }
    Ok(before)
}

fn sync_names(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    dir.parent().map_or(Ok(()), |parent| disk.sync_dir(parent))
}

#[cfg(test)]
mod tests {
    use headwater_storage::disk::{SimDisk, publish, read_file};

    use super::*;

    const DIR: &str = "/d/streams/7";

    fn write(disk: &dyn Disk, dir: &Path, what: &str) -> io::Result<()> {
        disk.create_dir_all(dir)?;
        sync_names(disk, dir)?;
        for name in ["checkpoint", "block"] {
            publish(disk, &dir.join(name), what.as_bytes())?;
        }
        Ok(())
    }

    /// What is in the folder, if both of its files say the same.
    fn content(disk: &dyn Disk, dir: &Path) -> Option<String> {
        let read = |name| read_file(disk, &dir.join(name)).ok().map(|b| String::from_utf8_lossy(&b).into_owned());
        let both = (read("checkpoint")?, read("block")?);
        (both.0 == both.1).then_some(both.0)
    }

    /// A snapshot comes, is put in place, and turns out to be readable, or not.
    fn install(disk: &SimDisk, readable: bool) -> io::Result<()> {
        let dir = Path::new(DIR);
        write(disk, &incoming(dir), "new")?;
        exchange(disk, dir, &incoming(dir))?;
        if readable { drop_replaced(disk, dir) } else { put_back(disk, dir) }
    }

    /// As a start does it, if `readable` says whether the snapshot can be opened.
    fn start(disk: &SimDisk, readable: bool) -> io::Result<()> {
        let dir = Path::new(DIR);
        let before = settle(disk, dir)?;
        let opens = content(disk, dir).is_some_and(|what| what == "old" || readable);
        if before && !opens {
            put_back(disk, dir)?;
        }
        drop_replaced(disk, dir)
    }

    #[test]
    fn a_crash_at_any_operation_leaves_the_old_folder_or_the_new_one() {
        for readable in [true, false] {
            let fresh = || {
                let disk = SimDisk::new();
                disk.create_dir_all(Path::new("/d/streams")).unwrap();
                write(&disk, Path::new(DIR), "old").unwrap();
                disk
            };
            let whole = fresh();
            let before = whole.ops();
            install(&whole, readable).unwrap();
            let ops = whole.ops();
            assert_eq!(content(&whole, Path::new(DIR)).as_deref(), Some(if readable { "new" } else { "old" }));
            for stop in before..=ops {
                let disk = fresh();
                disk.stop_after(stop);
                let done = install(&disk, readable).is_ok();
                for seed in 0..16 {
                    let crashed = disk.fork();
                    if seed == 0 {
                        crashed.kill()
                    } else {
                        crashed.crash(seed)
                    }
                    // The start may crash as well, anywhere, and starts again.
                    let mut after = crashed.ops();
                    loop {
                        let again = crashed.fork();
                        again.stop_after(after);
                        let ended = start(&again, readable).is_ok();
                        if ended {
                            break;
                        }
                        again.crash(seed + 1);
                        start(&again, readable).unwrap();
                        let found = content(&again, Path::new(DIR));
                        let what = format!("readable {readable}, stop {stop}, seed {seed}, second stop {after}");
                        assert!(
                            found.as_deref() == Some("old") || (readable && found.as_deref() == Some("new")),
                            "{what}: {found:?}"
                        );
                        assert!(
                            !done || !readable || found.as_deref() == Some("new"),
                            "{what}: {found:?} after it was done"
                        );
                        after += 1;
                    }
                    start(&crashed, readable).unwrap();
                    let found = content(&crashed, Path::new(DIR));
                    assert!(
                        found.as_deref() == Some("old") || (readable && found.as_deref() == Some("new")),
                        "stop {stop}, seed {seed}: {found:?}"
                    );
                }
            }
        }
    }
}
