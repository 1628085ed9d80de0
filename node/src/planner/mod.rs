//! The planner's executors: what is asked of nodes, and who acts on the answers.
//!
//! Deciding is [`headwater_plan`]'s business. Here are two who carry it out: [`run`], the meta leader of a cluster that
//! nobody else manages, and [`Reconciler`], which keeps streams as manifests say for `dev` and `demo`.

mod bare;
mod fleet;
mod reconciler;

pub(crate) use bare::run;
pub(crate) use fleet::Fleet;
pub(crate) use headwater_admin_client::{AdminClient, AdminToken, ClientError, Member};
pub(crate) use reconciler::{Pass, Reconciler, Taken};

use headwater_plan::Now;

/// The wall clock, for the planner.
pub(crate) fn now() -> Now {
    let ms = crate::clock::now().get() / 1_000_000;
    Now::from_unix_ms(i64::try_from(ms).unwrap_or(i64::MAX))
}
