//! The catalogue's checkpoint image: JSON under a version.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Catalog;

const VERSION: u32 = 1;

/// Bytes that are not a catalogue image. The node must not lead, and must not take it for an empty catalogue.
#[derive(Debug, Error)]
pub enum MalformedImage {
    /// Not the JSON it should be.
    #[error("malformed catalogue image")]
    Json(#[from] serde_json::Error),
    /// From a newer version of this program.
    #[error("catalogue image has version {found}, this program knows {VERSION}")]
    Version {
        /// The image's version.
        found: u32,
    },
    /// Two streams have the same name, or a stream's key in the map is not its id.
    #[error("catalogue image contradicts itself")]
    Contradiction,
}

#[derive(Serialize)]
struct Outgoing<'a> {
    version: u32,
    catalog: &'a Catalog,
}

#[derive(Deserialize)]
struct Incoming {
    version: u32,
    catalog: serde_json::Value,
}

impl Catalog {
    /// Everything, in a form that [`Self::from_image`] reads. Equal catalogues have equal images.
    pub fn image(&self) -> Vec<u8> {
        let outgoing = Outgoing { version: VERSION, catalog: self };
        serde_json::to_vec(&outgoing).expect("keys are strings and numbers, so this always serializes")
    }

    /// Reads an image.
    pub fn from_image(image: &[u8]) -> Result<Self, MalformedImage> {
        let Incoming { version, catalog } = serde_json::from_slice(image)?;
        if version != VERSION {
            return Err(MalformedImage::Version { found: version });
        }
        let mut catalog: Self = serde_json::from_value(catalog)?;
        catalog.rebuild_names();
        let ids_agree = catalog.streams.iter().all(|(id, stream)| *id == stream.id);
        let names_agree = catalog.nodes.iter().all(|(name, node)| *name == node.name);
        if !ids_agree || !names_agree || catalog.names.len() != catalog.streams.len() {
            return Err(MalformedImage::Contradiction);
        }
        Ok(catalog)
    }
}
