//! `headwater inspect DIR`: any store folder as text, damaged ones too.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `headwater inspect`.
#[derive(clap::Args)]
pub(crate) struct InspectArgs {
    /// A node's store folder, or a folder or file inside one
    dir: PathBuf,
}

pub(crate) fn run(args: &InspectArgs) -> ExitCode {
    if !args.dir.exists() {
        eprintln!("headwater: {}: no such file or folder", args.dir.display());
        return ExitCode::from(super::USAGE);
    }
    let text = headwater_storage::dump::inspect(&headwater_storage::disk::RealDisk, &args.dir);
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // `headwater inspect DIR | head` has seen enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("headwater: the text could not be written: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
