//! A store folder, or a single file of one, as text: for the `inspect` command, and as an oracle in tests.
//!
//! Works on damaged files too, read-only: it says what is wrong where, and goes on with the next file.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use crate::blocks::format as block_format;
use crate::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use crate::disk::{Disk, read_file};
use crate::hard_state::{HARD_STATE_FILE, LOCK_FILE};
use crate::replica_file;
use crate::wal::segment::{self, FileName};

mod checkpoint;
mod files;
mod log;

/// A store, or a part of one, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// The text.
    pub text: String,
    /// Whether anything is not as it was written. A torn end, which a crash may leave, is not damage.
    pub is_damaged: bool,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The path cannot be read.
    #[error("{} cannot be read", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// A file that no store has.
    #[error("{} is no file of a store: neither its name nor its first bytes say what it is", path.display())]
    UnknownFile {
        /// The file.
        path: PathBuf,
    },
    /// A folder in which no file is one of a store.
    #[error("{} is no folder of a store: no file in it is one of a store", path.display())]
    UnknownFolder {
        /// The folder.
        path: PathBuf,
    },
}

/// Renders a store folder, or any part of one: `wal`, `meta`, `streams`, a stream's folder, a single file.
///
/// # Errors
/// If there is nothing at `path` that could be shown. Damage is no error: it is part of the text.
pub fn inspect(disk: &dyn Disk, path: &Path) -> Result<Dump, DumpError> {
    let unreadable = |source| DumpError::Io { path: path.to_owned(), source };
    let mut page = Page::default();
    if disk.list(path).is_ok() {
        folder(disk, path, "", &mut page);
        if page.files == 0 {
            return Err(DumpError::UnknownFolder { path: path.to_owned() });
        }
    } else {
        let Content { bytes, checkpoint } = read(disk, path).map_err(unreadable)?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let kind = Kind::of_name(&name).filter(|kind| *kind != Kind::Leftover);
        let kind = kind.or_else(|| Kind::of_bytes(&bytes)).or_else(|| Kind::of_name(&name));
        let kind = kind.ok_or_else(|| DumpError::UnknownFile { path: path.to_owned() })?;
        page.line(&format!("{name} ({} bytes)", bytes.len()));
        file(disk, path, kind, Content { bytes, checkpoint }, &mut page);
    }
    Ok(Dump { text: page.text, is_damaged: page.is_damaged })
}

/// The kinds of files that a store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Segment,
    Spare,
    Block,
    BlockIndex,
    Checkpoint,
    HardState,
    Replica,
    Mark,
    Installed,
    Lock,
    /// Written and not yet renamed to what it was to be.
    Leftover,
}

impl Kind {
    fn of_name(name: &str) -> Option<Self> {
        match segment::parse_name(name) {
            Some(FileName::Live(_)) => return Some(Self::Segment),
            Some(FileName::Spare(_)) => return Some(Self::Spare),
            None if block_format::parse_name(name).is_some() => return Some(Self::Block),
            None if block_format::parse_index_name(name).is_some() => return Some(Self::BlockIndex),
            None => {}
        }
        match name {
            CHECKPOINT_FILE => Some(Self::Checkpoint),
            HARD_STATE_FILE => Some(Self::HardState),
            LOCK_FILE => Some(Self::Lock),
            "snapshot" => Some(Self::Mark),
            "installed" => Some(Self::Installed),
            _ if name.ends_with(replica_file::SUFFIX) => Some(Self::Replica),
            _ if name.ends_with(".replica.tmp") => Some(Self::Leftover),
            "checkpoint.tmp" | "hard-state.tmp" | "snapshot.new" => Some(Self::Leftover),
            _ => None,
        }
    }

    /// For a file that was renamed.
    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let kinds: [(&[u8], Self); 8] = [
            (b"HWWALSEG", Self::Segment),
            (b"HWSBLOCK", Self::Block),
            (b"HWBI", Self::BlockIndex),
            (b"HWSTRCKP", Self::Checkpoint),
            (b"HWMETCKP", Self::Checkpoint),
            (b"headwater-hard-state ", Self::HardState),
            (b"headwater-replica ", Self::Replica),
            (b"HWSM", Self::Mark),
        ];
        kinds.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, kind)| *kind)
    }
}

/// What a folder's name says about all that is in it.
fn folder_note(name: &str) -> Option<&'static str> {
    let (stem, extension) = name.rsplit_once('.')?;
    let of_stream = !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_digit());
    match extension {
        "incoming" if of_stream => Some("a snapshot that was on its way; the next start removes it"),
        "incoming" if stem == "meta" => Some("the last snapshot of the catalogue that came; the next one replaces it"),
        "replaced" if of_stream => {
            Some("what a snapshot replaces; a start puts it back if nothing whole is in its place")
        }
        _ => None,
    }
}

/// The text so far.
#[derive(Debug, Default)]
struct Page {
    text: String,
    is_damaged: bool,
    /// Files of a store.
    files: usize,
    /// Inside a folder that may hold half of what was to be in it.
    unfinished: bool,
}

impl Page {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// What is not as it was written.
    fn damage(&mut self, what: &str) {
        if self.unfinished {
            return self.line(&format!("  not whole: {what}"));
        }
        self.is_damaged = true;
        self.line(&format!("  DAMAGED: {what}"));
    }
}

fn folder(disk: &dyn Disk, dir: &Path, prefix: &str, page: &mut Page) {
    let entries = match disk.list(dir) {
        Ok(entries) => entries,
        Err(error) => return page.damage(&format!("{prefix} cannot be listed: {error}")),
    };
    if entries.iter().any(|entry| segment::parse_name(&entry.name).is_some()) {
        log::summary(disk, dir, page);
    }
    for entry in entries {
        let path = dir.join(&entry.name);
        let name = if prefix.is_empty() { entry.name.clone() } else { format!("{prefix}/{}", entry.name) };
        if entry.is_dir {
            let (note, before) = (folder_note(&entry.name), page.unfinished);
            if let Some(note) = note {
                page.line(&format!("{name}/\n  {note}"));
                page.unfinished |= entry.name.ends_with(".incoming");
            }
            folder(disk, &path, &name, page);
            page.unfinished = before;
            continue;
        }
        page.line(&format!("{name} ({} bytes)", entry.len));
        let Some(kind) = Kind::of_name(&entry.name) else {
            page.line("  no file of a store; not read");
            continue;
        };
        page.files += 1;
        match kind {
            // Nothing in them counts, and they may be large.
            Kind::Spare | Kind::Installed | Kind::Lock | Kind::Leftover => {
                file(disk, &path, kind, Content::default(), page);
            }
            _ => match read(disk, &path) {
                Ok(content) => file(disk, &path, kind, content, page),
                Err(error) => page.damage(&format!("cannot be read: {error}")),
            },
        }
    }
}

/// A file, and what says how much of it counts.
#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    /// Of the stream that a block belongs to, as it was before the block was read: a store in use grows beyond it.
    checkpoint: Option<Checkpoint>,
}

fn read(disk: &dyn Disk, path: &Path) -> io::Result<Content> {
    let dir = path.parent().filter(|dir| dir.ends_with("blocks")).and_then(Path::parent);
    let checkpoint = dir.and_then(|dir| Checkpoint::load(disk, dir).ok()?);
    Ok(Content { bytes: read_file(disk, path)?, checkpoint })
}

fn file(disk: &dyn Disk, path: &Path, kind: Kind, content: Content, page: &mut Page) {
    let Content { bytes, checkpoint } = content;
    match kind {
        Kind::Segment => log::segment(&bytes, page),
        Kind::Block => files::block(path, checkpoint.as_ref(), bytes, page),
        Kind::BlockIndex => files::block_index(path, &bytes, page),
        Kind::Checkpoint => checkpoint::checkpoint(disk, path, bytes, page),
        Kind::Replica => files::replica(path, &bytes, page),
        Kind::HardState => files::hard_state(path, &bytes, page),
        Kind::Mark => files::mark(&bytes, page),
        Kind::Spare => page.line("  waits for its next life; not read"),
        Kind::Installed => page.line("  the state came as a snapshot from a peer: the log may end before it"),
        Kind::Lock => page.line("  locked while a process uses the store; holds nothing"),
        Kind::Leftover => page.line("  left by a crash before it got its name; never read"),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        // Writing to a String cannot fail.
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
