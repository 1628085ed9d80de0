//! `headwater inspect PATH`: a store folder or a file of one as text, damaged ones too.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `headwater inspect`.
#[derive(clap::Args)]
#[command(after_help = "Exit code: 0 if nothing is damaged, 1 if something is, 2 if there is nothing to show.")]
pub(crate) struct InspectArgs {
    /// A node's store folder, or a folder or file inside one
    path: PathBuf,
}

pub(crate) fn run(args: &InspectArgs) -> ExitCode {
    // What a file belongs to is found by the folders above it.
    let path = std::path::absolute(&args.path).unwrap_or_else(|_| args.path.clone());
    if path.exists() && !path.is_file() && !path.is_dir() {
        eprintln!("headwater: {}: neither a file nor a folder", args.path.display());
        return ExitCode::from(super::USAGE);
    }
    let dump = match headwater_storage::dump::inspect(&headwater_storage::disk::RealDisk, &path) {
        Ok(dump) => dump,
        Err(error) => {
            eprintln!("headwater: {:#}", anyhow::Error::new(error));
            return ExitCode::from(super::USAGE);
        }
    };
    match std::io::stdout().lock().write_all(dump.text.as_bytes()) {
        // `headwater inspect DIR | head` has seen enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("headwater: the text could not be written: {error}");
            ExitCode::FAILURE
        }
        _ if dump.is_damaged => {
            eprintln!("headwater: {}: damaged where the text says DAMAGED", args.path.display());
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
