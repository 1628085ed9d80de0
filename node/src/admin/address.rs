//! Where a node's admin API is, and where things are in it.

use headwater_core::catalog::NodeEntry;

/// Where others reach a node's admin API.
///
/// A node that listens on every address does not know which of them others use: that is the host under which its
/// peers dial it.
pub(crate) fn admin_url(node: &NodeEntry) -> String {
    let http = &node.addresses.http;
    let unspecified = |host: &str| matches!(host, "0.0.0.0" | "[::]" | "");
    match (http.rsplit_once(':'), node.addresses.cluster.rsplit_once(':')) {
        (Some((host, port)), Some((reachable, _))) if unspecified(host) && !unspecified(reachable) => {
            format!("http://{reachable}:{port}")
        }
        _ => format!("http://{http}"),
    }
}

/// The path of these segments, each one segment whatever characters it has.
pub(crate) fn path(segments: &[&str]) -> String {
    let mut url = reqwest::Url::parse("http://node").expect("a plain address");
    url.path_segments_mut().expect("http has a path").clear().extend(segments);
    url.path().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use headwater_core::catalog::{Addresses, NodeName, NodeState};
    use headwater_core::ids::{RaftNodeId, Timestamp};

    use super::*;

    #[test]
    fn a_node_that_listens_everywhere_is_reached_where_its_peers_reach_it() {
        let at = |http: &str, cluster: &str| {
            admin_url(&NodeEntry {
                name: NodeName::new("n1"),
                incarnation: RaftNodeId::new(1),
                past: BTreeSet::new(),
                addresses: Addresses { client: String::new(), cluster: cluster.into(), http: http.into() },
                boot_epoch: 1,
                tags: BTreeSet::new(),
                zone: None,
                state: NodeState::Active,
                joined: Timestamp::new(0),
            })
        };
        assert_eq!(at("10.0.0.1:8222", "n1.svc:6222"), "http://10.0.0.1:8222");
        assert_eq!(at("0.0.0.0:8222", "n1.svc:6222"), "http://n1.svc:8222");
        assert_eq!(at("[::]:8222", "[fd00::1]:6222"), "http://[fd00::1]:8222");
        assert_eq!(at("0.0.0.0:8222", "0.0.0.0:6222"), "http://0.0.0.0:8222");
    }

    #[test]
    fn names_in_a_path_are_one_segment_each() {
        assert_eq!(path(&["v1", "streams", "$G", "a/b c%2F"]), "/v1/streams/$G/a%2Fb%20c%252F");
    }
}
