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
    /// Two streams have the same name, a stream's key in the map is not its id, or no counting leads to a number.
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
        // Counting goes on from all of these.
        let generations = catalog.streams.values().all(|stream| stream.generation.is_countable());
        let counts = [catalog.applied.get(), catalog.groups_given, catalog.fence.number.get()];
        if !generations || counts.iter().any(|count| *count > u64::MAX / 2) {
            return Err(MalformedImage::Contradiction);
        }
        if !ids_agree || !names_agree || catalog.names.len() != catalog.streams.len() {
            return Err(MalformedImage::Contradiction);
        }
        Ok(catalog)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{
        Addresses, CatalogCommand, CatalogEntry, CatalogResponse, FenceNumber, NodeName, NodeState, Owner, Replica,
        StreamKey,
    };
    use crate::ids::{Generation, GroupId, LogIndex, RaftNodeId, StreamId, Timestamp};

    const PAGE: &str = include_str!("../../../../docs/formats/catalogue.md");

    fn shown(json: Vec<u8>) {
        let json = String::from_utf8(json).unwrap();
        assert!(PAGE.lines().any(|line| line == json), "{json}");
    }

    fn replica() -> Replica {
        Replica { node: NodeName::new("n1"), raft_id: RaftNodeId::new(77) }
    }

    fn register() -> CatalogCommand {
        CatalogCommand::RegisterNode {
            name: NodeName::new("n1"),
            incarnation: RaftNodeId::new(77),
            addresses: Addresses {
                client: "10.0.0.1:4222".into(),
                cluster: "10.0.0.1:6222".into(),
                http: "10.0.0.1:8222".into(),
            },
            boot_epoch: 9,
            last_boot_epoch: Some(8),
            tags: ["ssd".to_owned()].into(),
            zone: Some("a".into()),
        }
    }

    fn create(name: &str, subject: &str) -> CatalogCommand {
        CatalogCommand::CreateStream {
            key: StreamKey::new("$G", name),
            subjects: vec![subject.into()],
            config: serde_json::json!({ "name": name }),
            replicas: vec![replica()],
            owner: Some(Owner { namespace: "default".into(), name: "orders".into(), uid: None }),
        }
    }

    #[test]
    fn entries_are_as_documented() {
        let (id, number) = (StreamId::new(4), FenceNumber::new(2));
        let commands = [
            CatalogCommand::InitCluster { cluster_id: "c-1".into() },
            register(),
            CatalogCommand::SetNodeState { name: NodeName::new("n1"), state: NodeState::Draining },
            create("ORDERS", "orders.>"),
            CatalogCommand::UpdateStream {
                id,
                subjects: vec!["orders.>".into()],
                config: serde_json::json!({ "name": "ORDERS" }),
                expected_generation: Some(Generation::new(1)),
                owner: None,
            },
            CatalogCommand::PlaceStream { id, replicas: vec![replica()] },
            CatalogCommand::RejoinReplica {
                id,
                node: NodeName::new("n1"),
                from: RaftNodeId::new(77),
                to: RaftNodeId::new(900),
            },
            CatalogCommand::MemberVotes { id, raft_id: RaftNodeId::new(900) },
            CatalogCommand::RegroupStream {
                id,
                from: GroupId::new(1),
                source: RaftNodeId::new(77),
                replicas: vec![Replica { node: NodeName::new("n1"), raft_id: RaftNodeId::new(901) }],
            },
            CatalogCommand::LoseNodes { incarnations: [RaftNodeId::new(78)].into() },
            CatalogCommand::RemoveStream { id, expected_owner: None },
            CatalogCommand::ConfirmRemoval { id, node: NodeName::new("n1") },
            CatalogCommand::AcquireFence { holder: "operator".into(), ttl_ns: 5_000 },
            CatalogCommand::RenewFence { number, ttl_ns: 5_000 },
            CatalogCommand::ReleaseFence { number },
        ];
        for command in commands {
            let fence = matches!(command, CatalogCommand::UpdateStream { .. }).then_some(number);
            let entry = CatalogEntry::new(Timestamp::new(1_000), fence, command);
            assert_eq!(CatalogEntry::decode(&entry.encode()).unwrap(), entry);
            shown(entry.encode());
        }
    }

    #[test]
    fn the_image_is_as_documented() {
        let mut catalog = Catalog::default();
        let commands = [
            CatalogCommand::InitCluster { cluster_id: "c-1".into() },
            register(),
            create("ORDERS", "orders.>"),
            create("OLD", "old"),
            CatalogCommand::RemoveStream { id: StreamId::new(4), expected_owner: None },
            CatalogCommand::AcquireFence { holder: "operator".into(), ttl_ns: 5_000 },
        ];
        for (index, command) in (1..).zip(commands) {
            let entry = CatalogEntry::new(Timestamp::new(1_000), None, command);
            let response = catalog.apply(LogIndex::new(index), &entry);
            assert!(!matches!(response, CatalogResponse::Refused(_)), "{response:?}");
        }
        assert_eq!(Catalog::from_image(&catalog.image()).unwrap(), catalog);
        shown(catalog.image());
    }

    /// Found by reading, where fuzzing had found others: the next number was past the largest.
    #[test]
    fn numbers_that_no_counting_leads_to_are_refused() {
        let read = |change: &dyn Fn(&mut Catalog)| {
            let mut catalog = Catalog::default();
            change(&mut catalog);
            Catalog::from_image(&catalog.image()).is_ok()
        };
        for (count, is_read) in [(u64::MAX / 2, true), (u64::MAX / 2 + 1, false)] {
            assert_eq!(read(&|catalog| catalog.groups_given = count), is_read);
            assert_eq!(read(&|catalog| catalog.applied = LogIndex::new(count)), is_read);
            assert_eq!(read(&|catalog| catalog.fence.number = FenceNumber::new(count)), is_read);
        }
    }
}
