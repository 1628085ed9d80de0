//! A small file system of its own for one node's store, which a test can fill.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// A tmpfs over a directory, unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Whether file systems can be mounted here. Only root can; CI must.
    ///
    /// # Errors
    /// In CI without root, where this must not be skipped.
    pub fn is_possible() -> anyhow::Result<bool> {
        let root = rustix::process::geteuid().is_root();
        ensure!(root || std::env::var_os("CI").is_none(), "mounting a small disk needs root, which CI must have");
        Ok(root)
    }

    pub(crate) fn mount(dir: &Path, bytes: u64) -> anyhow::Result<SmallDisk> {
        fs::create_dir_all(dir)?;
        let size = format!("size={bytes}");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir).status();
        ensure!(status.context("mount")?.success(), "a tmpfs could not be mounted on {}", dir.display());
        Ok(SmallDisk(dir.to_owned()))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Leaves no room at all.
    ///
    /// # Errors
    /// If writing fails for another reason.
    pub fn fill(&self) -> anyhow::Result<()> {
        let mut file = File::create(self.filler())?;
        for chunk in [1 << 20, 4096, 1] {
            let zeros = vec![0; chunk];
            loop {
                match file.write_all(&zeros) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// If the file can't be removed.
    pub fn free(&self) -> anyhow::Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process of a failed test may still be there.
        let status = Command::new("umount").arg("-l").arg(&self.0).status();
        if !status.is_ok_and(|status| status.success()) {
            let _closed = writeln!(std::io::stderr(), "{} stays mounted", self.0.display());
        }
    }
}
