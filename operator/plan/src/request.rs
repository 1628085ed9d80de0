//! From a step to the admin call that takes it.

use crate::desired::Desired;
use crate::observed::{Observed, StreamView};
use crate::step::Step;
use crate::wire::{DurabilityStep, DurabilityStepKind, LeadershipTransfer, Owner, StreamDelete, StreamPut};

/// One admin call.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// `PUT /v1/streams/{account}/{name}`
    Put(StreamPut),
    /// `DELETE /v1/streams/{account}/{name}`
    Delete(StreamDelete),
    /// `POST /v1/streams/{account}/{name}/durability/step`
    Durability(DurabilityStep),
    /// `POST /v1/leadership/transfer`
    Transfer(LeadershipTransfer),
}

/// The call that takes `step` under this fence. Taking it twice does no more than taking it once.
pub fn request(step: &Step, desired: &Desired, observed: &Observed, fence: u64) -> Request {
    match step {
        Step::CreateStream { config } => {
            Request::Put(StreamPut { config: config.clone(), owner: Some(desired.owner.clone()), generation: 0, fence })
        }
        Step::UpdateStream { config, generation, .. } => Request::Put(StreamPut {
            config: config.clone(),
            owner: Some(Owner { adopted: is_adopted(observed), ..desired.owner.clone() }),
            generation: *generation,
            fence,
        }),
        Step::Adopt { config, generation, .. } => Request::Put(StreamPut {
            config: config.clone(),
            owner: Some(Owner { adopted: true, ..desired.owner.clone() }),
            generation: *generation,
            fence,
        }),
        Step::DeleteStream { generation } => {
            Request::Delete(StreamDelete { owner: Some(desired.owner.clone()), generation: *generation, fence })
        }
        Step::ProposeDurability { generation, durability } => Request::Durability(DurabilityStep {
            generation: *generation,
            node: None,
            kind: DurabilityStepKind::Propose,
            desired: Some(*durability),
            fence,
        }),
        Step::GrantDurability { node, generation } => Request::Durability(DurabilityStep {
            generation: *generation,
            node: Some(node.clone()),
            kind: DurabilityStepKind::Grant,
            desired: None,
            fence,
        }),
        Step::TransferLeadership { from, to } => Request::Transfer(LeadershipTransfer {
            account: desired.account.clone(),
            stream: Some(desired.name.clone()),
            from: from.clone(),
            to: Some(to.clone()),
            fence,
        }),
    }
}

/// Whether the stream was there before its owner: an update must not forget that.
fn is_adopted(observed: &Observed) -> bool {
    match &observed.stream {
        StreamView::Present(server) => server.owner.as_ref().is_some_and(|owner| owner.adopted),
        StreamView::Absent | StreamView::Unknown { .. } => false,
    }
}
