//! Handing leadership over: who takes it, and how long to wait for that.

use std::time::Duration;

use headwater_core::catalog::NodeName;

use crate::node::Context;
use crate::raft::{GroupState, RaftGroup};
use crate::transport::NodeId;

/// A handed-over leadership must have moved within this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether the chosen one can still take over.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Hands the group to `preferred`, or to the follower that is closest behind; resolves when leadership has moved.
pub(crate) async fn hand_over(
    context: &Context,
    raft: &RaftGroup,
    preferred: Option<&NodeName>,
) -> Result<(), &'static str> {
    // A name nobody has becomes 0, which is nobody's id.
    let preferred = preferred.map(|name| context.meta.read(|c| c.node(name).map_or(0, |n| n.incarnation.get())));
    hand_over_where(context, raft, |node| preferred.is_none_or(|preferred| preferred == node)).await
}

/// Hands the group to the follower that is closest behind, of those on nodes that are `wanted`.
pub(crate) async fn hand_over_where(
    context: &Context,
    raft: &RaftGroup,
    wanted: impl Fn(NodeId) -> bool,
) -> Result<(), &'static str> {
    let able = |id: u64| {
        let node = context.node_of(id);
        context.transport.is_up(node) && !context.is_leaving(node)
    };
    let fit = |id: u64| wanted(context.node_of(id)) && able(id);
    let to = successor(&raft.state(), raft.raft_id(), fit).ok_or("no follower that is up can take over")?;
    let lost = async {
        while able(to) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! {
        moved = raft.transfer_leader(to, PATIENCE) => match moved {
            Ok(true) => Ok(()),
            Ok(false) => Err("leadership did not move in time"),
            Err(_stopped) => Err("the group has stopped"),
        },
        () = lost => Err("the follower that was to take over went away"),
    }
}

/// The voter to hand over to: of those that are fit for it, whoever has most of the log.
fn successor(state: &GroupState, own: u64, fit: impl Fn(u64) -> bool) -> Option<u64> {
    let matched = |id: u64| state.matched.iter().find(|(m, _)| *m == id).map_or(0, |(_, at)| *at);
    let fit = |id: &u64| *id != own && fit(*id);
    state.members.voters().into_iter().filter(fit).max_by_key(|id| (matched(*id), std::cmp::Reverse(*id)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::{Members, Role};

    #[test]
    fn the_closest_follower_that_is_able_takes_over() {
        let state = GroupState {
            role: Role::Leader,
            leader: Some(1),
            term: 3,
            accepted: 90,
            committed: 90,
            commit_known: true,
            applied: 90,
            members: Members { at: None, configs: vec![[1, 2, 3].into()], nodes: [1, 2, 3, 4].into() },
            matched: vec![(2, 80), (3, 90), (4, 90)],
            heard_ms: Vec::new(),
            quorum_ack_ms: None,
        };
        assert_eq!(successor(&state, 1, |_| true), Some(3));
        assert_eq!(successor(&state, 1, |id| id != 3), Some(2));
        assert_eq!(successor(&state, 1, |id| id == 2), Some(2), "the wanted one, though it is behind");
        assert_eq!(successor(&state, 1, |id| id == 4), None, "a learner cannot lead");
        assert_eq!(successor(&state, 1, |_| false), None);
    }
}
