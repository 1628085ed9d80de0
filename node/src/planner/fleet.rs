//! The nodes of a cluster, seen from outside: asked all at once, and changed under one fence.

use std::time::{Duration, Instant};

use futures::future::join_all;
use headwater_admin_client::{AdminClient, ClientError, FailureClass, Member};
use headwater_plan::wire::FenceRequest;
use headwater_plan::{NodeAnswer, Request, StreamView};

use super::now;

/// How long a fence stays live without another request.
const FENCE_TTL: Duration = Duration::from_secs(15);

/// See the module's description.
pub(crate) struct Fleet {
    client: AdminClient,
    members: Vec<Member>,
    holder: String,
    fence: Option<(Instant, u64)>,
}

impl Fleet {
    /// `holder` is the name under which this process asks for fences.
    pub(crate) fn new(client: AdminClient, members: Vec<Member>, holder: String) -> Self {
        Self { client, members, holder, fence: None }
    }

    /// Asks every node at once.
    pub(crate) async fn look(&self) -> Vec<NodeAnswer> {
        join_all(self.members.iter().map(|member| async {
            let report = self.client.recovery(&member.url).await;
            NodeAnswer {
                name: member.name.clone(),
                url: member.url.clone(),
                pod: None,
                at: now(),
                report: report.map_err(|e| e.to_string()),
            }
        }))
        .await
    }

    /// The catalogue's entry of a stream, from the first node that can say.
    pub(crate) async fn entry(&self, answers: &[NodeAnswer], account: &str, name: &str) -> StreamView {
        let mut why = Vec::new();
        for answer in answers {
            if let Err(error) = &answer.report {
                why.push(format!("{}: {error}", answer.name));
                continue;
            }
            match self.client.stream(&answer.url, account, name).await {
                Ok(report) => return StreamView::Present(report.into()),
                Err(error) if error.class() == FailureClass::NotFound => return StreamView::Absent,
                Err(error) => why.push(format!("{}: {error}", answer.name)),
            }
        }
        StreamView::Unknown { why: why.join("; ") }
    }

    /// The fencing number of this process: extended in time, asked anew when it may have run out.
    pub(crate) async fn fence(&mut self, answers: &[NodeAnswer]) -> Result<u64, ClientError> {
        if let Some((since, number)) = self.fence
            && since.elapsed() < FENCE_TTL / 2
        {
            return Ok(number);
        }
        let ttl_ms = u64::try_from(FENCE_TTL.as_millis()).unwrap_or(u64::MAX);
        let ask = FenceRequest { holder: self.holder.clone(), ttl_ms };
        let started = Instant::now();
        let mut last = ClientError::nobody(self.members.len());
        for answer in answering(answers, None) {
            match self.client.fence(&answer.url, &ask).await {
                Ok(fence) => {
                    self.fence = Some((started, fence.number));
                    return Ok(fence.number);
                }
                Err(error) if error.class() == FailureClass::Transient => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Gives the fence back, so that nobody waits for its end.
    pub(crate) async fn release(&mut self) {
        if self.fence.take().is_none() {
            return;
        }
        let ask = FenceRequest { holder: self.holder.clone(), ttl_ms: 0 };
        for member in &self.members {
            if self.client.fence(&member.url, &ask).await.is_ok() {
                return;
            }
        }
    }

    /// Sends a change, to the node called `first` before all others, until one takes it or refuses it for good.
    pub(crate) async fn send(
        &mut self,
        answers: &[NodeAnswer],
        first: Option<&str>,
        (account, name): (&str, &str),
        request: &Request,
    ) -> Result<(), ClientError> {
        let mut result = Err(ClientError::nobody(self.members.len()));
        for answer in answering(answers, first) {
            result = self.client.send(&answer.url, account, name, request).await;
            match &result {
                Err(error) if error.class() == FailureClass::Transient => {}
                _ => break,
            }
        }
        if result.as_ref().is_err_and(|error| error.class() == FailureClass::Overtaken) {
            self.fence = None;
        }
        result
    }
}

/// Those that answered, `first` ahead of all others.
fn answering<'a>(answers: &'a [NodeAnswer], first: Option<&str>) -> Vec<&'a NodeAnswer> {
    let mut nodes: Vec<&NodeAnswer> = answers.iter().filter(|a| a.report.is_ok()).collect();
    nodes.sort_by_key(|answer| first != Some(answer.name.as_str()));
    nodes
}
