//! A file system of its own for one node's store, in an image file: what the image holds while the node is stopped in
//! mid-load is what a power cut leaves.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// An ext4 image on a loop device, mounted over a directory; unmounted when dropped.
///
/// With `SYNCS_ONLY` nothing but a sync reaches the image while a test runs, and a copy of it is of one moment.
#[derive(Debug)]
pub struct PowerDisk {
    dir: PathBuf,
    image: PathBuf,
    device: String,
    /// Seconds from one commit to the next.
    commit: u32,
    copies: u32,
    /// What the copy takes the place of, while it is still mounted.
    replaced: Option<PathBuf>,
}

/// Seconds to ext4's own next commit, longer than any test.
pub(crate) const SYNCS_ONLY: u32 = 600;
/// As ext4 has it by itself.
pub(crate) const COMMITS: u32 = 5;

fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "{command:?}: {} {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn attach(image: &Path, dir: &Path, commit: u32) -> anyhow::Result<String> {
    let device = run(Command::new("losetup").args(["--find", "--show"]).arg(image))?;
    if let Err(error) =
        run(Command::new("mount").args(["-t", "ext4", "-o", &format!("commit={commit}"), &device]).arg(dir))
    {
        let _detached = run(Command::new("losetup").args(["--detach", &device]));
        return Err(error);
    }
    Ok(device)
}

impl PowerDisk {
    /// Whether an image can be made and mounted here, by doing it.
    ///
    /// # Errors
    /// What failed, if it cannot.
    pub fn is_possible() -> anyhow::Result<bool> {
        let dir = tempfile::tempdir()?;
        PowerDisk::mount(&dir.path().join("n"), 16 << 20, SYNCS_ONLY).map(|_| true)
    }

    pub(crate) fn mount(dir: &Path, bytes: u64, commit: u32) -> anyhow::Result<PowerDisk> {
        std::fs::create_dir_all(dir)?;
        let image = dir.with_extension("img");
        std::fs::File::create(&image)?.set_len(bytes)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        let device = attach(&image, dir, commit)?;
        Ok(PowerDisk { dir: dir.to_owned(), image, device, commit, copies: 0, replaced: None })
    }

    /// Copies the image as it is. Whoever writes to the file system must have been stopped.
    pub(crate) fn cut(&mut self) -> anyhow::Result<()> {
        self.copies += 1;
        let copy = self.image.with_extension(format!("img{}", self.copies));
        run(Command::new("cp").arg("--sparse=always").arg(&self.image).arg(&copy))?;
        self.replaced = Some(std::mem::replace(&mut self.image, copy));
        Ok(())
    }

    /// Puts the copy in the place of what was mounted, on another device: as after a boot, nobody can take what the
    /// page cache held for kept.
    pub(crate) fn power_on(&mut self) -> anyhow::Result<()> {
        run(Command::new("umount").arg("-l").arg(&self.dir))?;
        let device = attach(&self.image, &self.dir, self.commit)?;
        let before = std::mem::replace(&mut self.device, device);
        run(Command::new("losetup").args(["--detach", &before]))?;
        if let Some(replaced) = self.replaced.take() {
            std::fs::remove_file(replaced)?;
        }
        Ok(())
    }
}

impl Drop for PowerDisk {
    fn drop(&mut self) {
        // Lazily: a process of a failed test may still be there.
        let unmounted = run(Command::new("umount").arg("-l").arg(&self.dir));
        let detached = run(Command::new("losetup").args(["--detach", &self.device]));
        if let Err(error) = unmounted.and(detached) {
            let _closed = writeln!(std::io::stderr(), "{error:#}");
        }
    }
}
