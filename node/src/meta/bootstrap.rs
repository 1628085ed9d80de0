//! What a node with an empty disk does first. Pure: told who answered what, it decides.
//!
//! A new cluster is founded only if *every* configured peer says that its disk is empty, too; one peer that cannot be
//! asked might hold the cluster's data. So a wiped node never starts a second cluster.

use std::collections::BTreeMap;

/// What one configured peer said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Empty { node_id: u64 },
    Member { cluster_id: String },
}

/// The next move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// Found the cluster with these voters: this node has the first name of all.
    Found { voters: Vec<(String, u64)> },
    /// Every peer is empty and `founder` will found the cluster.
    AwaitFounder { founder: String },
    /// A cluster exists: ask to join it as a new incarnation.
    Join { cluster_id: String },
    /// These peers have not answered yet.
    Ask { missing: Vec<String> },
    /// Peers belong to different clusters: a person must fix the configuration.
    Refuse { clusters: Vec<String> },
}

/// At most so many voters; further nodes join as learners of the catalogue.
pub(crate) const META_VOTERS_MAX: usize = 5;

pub(crate) fn decide(own_name: &str, own_id: u64, seeds: &[String], heard: &BTreeMap<String, Heard>) -> Move {
    let mut clusters: Vec<String> = heard
        .values()
        .filter_map(|h| match h {
            Heard::Member { cluster_id } => Some(cluster_id.clone()),
            Heard::Empty { .. } => None,
        })
        .collect();
    clusters.sort();
    clusters.dedup();
    match clusters.as_slice() {
        [] => {}
        [cluster_id] => return Move::Join { cluster_id: cluster_id.clone() },
        _ => return Move::Refuse { clusters },
    }

    let missing: Vec<String> = seeds.iter().filter(|s| *s != own_name && !heard.contains_key(*s)).cloned().collect();
    if !missing.is_empty() {
        return Move::Ask { missing };
    }
    let mut nodes: Vec<(String, u64)> = heard
        .iter()
        .filter_map(|(name, h)| match h {
            Heard::Empty { node_id } if seeds.contains(name) => Some((name.clone(), *node_id)),
            _ => None,
        })
        .chain([(own_name.to_owned(), own_id)])
        .collect();
    nodes.sort();
    nodes.dedup();
    match nodes.first() {
        Some((founder, _)) if founder == own_name => {
            nodes.truncate(META_VOTERS_MAX);
            Move::Found { voters: nodes }
        }
        Some((founder, _)) => Move::AwaitFounder { founder: founder.clone() },
        None => Move::Ask { missing: Vec::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }
    fn empty(id: u64) -> Heard {
        Heard::Empty { node_id: id }
    }
    fn member(id: &str) -> Heard {
        Heard::Member { cluster_id: id.into() }
    }

    #[test]
    fn a_cluster_is_founded_once_and_only_when_all_are_empty() {
        let all = seeds(&["n1", "n2", "n3"]);
        let ask = decide("n1", 1, &all, &BTreeMap::from([("n2".into(), empty(2))]));
        assert_eq!(ask, Move::Ask { missing: seeds(&["n3"]) });
        let heard =
            |ids: &[(&str, u64)]| ids.iter().map(|(n, i)| ((*n).to_owned(), empty(*i))).collect::<BTreeMap<_, _>>();
        let found = decide("n1", 1, &all, &heard(&[("n2", 2), ("n3", 3)]));
        assert_eq!(found, Move::Found { voters: vec![("n1".into(), 1), ("n2".into(), 2), ("n3".into(), 3)] });
        assert_eq!(decide("n2", 2, &all, &heard(&[("n1", 1), ("n3", 3)])), Move::AwaitFounder { founder: "n1".into() });
    }

    #[test]
    fn a_wiped_node_joins_even_if_a_peer_is_missing() {
        let heard = BTreeMap::from([("n2".to_owned(), member("c"))]);
        assert_eq!(decide("n1", 1, &seeds(&["n1", "n2", "n3"]), &heard), Move::Join { cluster_id: "c".into() });
    }

    #[test]
    fn a_wiped_node_alone_waits_for_ever() {
        let all = seeds(&["n1", "n2", "n3"]);
        assert_eq!(decide("n1", 1, &all, &BTreeMap::new()), Move::Ask { missing: seeds(&["n2", "n3"]) });
    }

    #[test]
    fn two_clusters_are_refused() {
        let heard = BTreeMap::from([("n2".to_owned(), member("a")), ("n3".to_owned(), member("b"))]);
        assert_eq!(decide("n1", 1, &seeds(&["n1", "n2", "n3"]), &heard), Move::Refuse { clusters: seeds(&["a", "b"]) });
    }

    #[test]
    fn a_cluster_of_one_founds_itself() {
        assert_eq!(decide("n1", 1, &[], &BTreeMap::new()), Move::Found { voters: vec![("n1".into(), 1)] });
    }
}
