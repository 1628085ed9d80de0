//! Writes the CRDs to `crds/yaml` and into the chart `headwater-crds`.
//!
//! Usage: `cargo run -p headwater-crds --bin crdgen [repository root]`

#![expect(clippy::disallowed_methods, reason = "writes generated text files, which need no sync")]

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use headwater_crds::crd;

fn main() -> io::Result<()> {
    let root = env::args().nth(1).map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), PathBuf::from);
    let yaml = root.join("crds/yaml");
    let templates = root.join("charts/headwater-crds/templates");
    fs::create_dir_all(&yaml)?;
    fs::create_dir_all(&templates)?;
    for crd in crd::all() {
        let name = crd::file_name(&crd);
        fs::write(yaml.join(&name), crd::yaml(&crd))?;
        fs::write(templates.join(&name), crd::template(&crd))?;
    }
    Ok(())
}
