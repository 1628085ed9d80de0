//! `headwater inspect DIR`: any store folder as text, damaged ones too.

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
    print!("{}", headwater_storage::dump::inspect(&headwater_storage::disk::RealDisk, &args.dir));
    ExitCode::SUCCESS
}
