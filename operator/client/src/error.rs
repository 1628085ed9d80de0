//! Why a call did not work, and what that means for whoever called.

use headwater_plan::wire::ErrorBody;
use reqwest::StatusCode;
use thiserror::Error;

/// Longest excerpt of an answer that is not JSON (bytes).
const EXCERPT_BYTES_MAX: usize = 200;

/// Why a call did not work.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No connection, or no answer in time.
    #[error("{url}: {why}")]
    Unreachable {
        /// The node's address.
        url: String,
        /// The innermost cause.
        why: String,
    },
    /// The node, or something in front of it, said no.
    #[error("{message} ({})", word(*status, code))]
    Refused {
        /// HTTP status.
        status: u16,
        /// The node's word for programs; empty if it was not a node that answered.
        code: String,
        /// The node's sentence, or an excerpt of what came.
        message: String,
    },
    /// The answer was too long or not what was asked for.
    #[error("{url} sent an answer that cannot be used: {why}")]
    Malformed {
        /// The node's address.
        url: String,
        /// What is wrong with it.
        why: String,
    },
}

/// What a failure means for whoever called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// The same call may work later, or at another node.
    Transient,
    /// The fence or the generation was overtaken: observe and plan again.
    Overtaken,
    /// The admin token is missing or wrong.
    Credentials,
    /// There is no such stream.
    NotFound,
    /// The request itself is refused and will be until somebody changes it.
    Terminal,
}

impl ClientError {
    /// Sorts the failure; what to do about each class is the caller's business.
    pub fn class(&self) -> FailureClass {
        let Self::Refused { status, code, .. } = self else {
            return FailureClass::Transient;
        };
        match (*status, code.as_str()) {
            (401 | 403, _) => FailureClass::Credentials,
            // Only a node says `not_found`; a bare 404 comes from something else at that address.
            (404, "not_found") => FailureClass::NotFound,
            // Our number, or what we planned from, is worth nothing any more.
            (_, "stale_fence" | "stale_generation") => FailureClass::Overtaken,
            // Somebody else may act now. Only asking for a fence is answered so, before any step is sent: nothing of
            // ours is old, and planning anew would bring the same step. So it is a wait, and it is shown as one; the
            // answer names the holder. A number of ours that was overtaken is `stale_fence`.
            (_, "fence_held") => FailureClass::Transient,
            (_, "no_leader" | "not_leader" | "busy" | "timeout") => FailureClass::Transient,
            (404 | 408 | 421 | 425 | 429, _) => FailureClass::Transient,
            (400..=499, _) => FailureClass::Terminal,
            // The JetStream API's own number: it has looked at the configuration and will not have it.
            (500, code) if !code.is_empty() && code.bytes().all(|b| b.is_ascii_digit()) => FailureClass::Terminal,
            _ => FailureClass::Transient,
        }
    }

    /// What a call says when there is no node to ask.
    pub fn nobody(nodes: usize) -> Self {
        let message = format!("none of {nodes} nodes answers");
        Self::Refused { status: 503, code: "no_leader".to_owned(), message }
    }

    pub(crate) fn refused(status: StatusCode, answer: &[u8]) -> Self {
        let body = serde_json::from_slice(answer).unwrap_or_else(|_| {
            let excerpt = answer.get(..answer.len().min(EXCERPT_BYTES_MAX)).unwrap_or_default();
            ErrorBody { code: String::new(), message: String::from_utf8_lossy(excerpt).trim().to_owned() }
        });
        Self::Refused { status: status.as_u16(), code: body.code, message: body.message }
    }
}

fn word(status: u16, code: &str) -> String {
    if code.is_empty() { status.to_string() } else { format!("{status} {code}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_sorted_by_what_can_be_done_about_them() {
        let table = [
            (401, "", FailureClass::Credentials),
            (403, "forbidden", FailureClass::Credentials),
            (404, "not_found", FailureClass::NotFound),
            (404, "no_such_path", FailureClass::Transient),
            (404, "", FailureClass::Transient),
            (409, "stale_fence", FailureClass::Overtaken),
            (409, "stale_generation", FailureClass::Overtaken),
            (409, "fence_held", FailureClass::Transient),
            (409, "busy", FailureClass::Transient),
            (409, "not_owner", FailureClass::Terminal),
            (400, "10065", FailureClass::Terminal),
            (422, "", FailureClass::Terminal),
            (429, "", FailureClass::Transient),
            (503, "no_leader", FailureClass::Transient),
            (503, "timeout", FailureClass::Transient),
            (500, "", FailureClass::Transient),
            (500, "10052", FailureClass::Terminal),
            (503, "10008", FailureClass::Transient),
        ];
        for (status, code, class) in table {
            let error = ClientError::Refused { status, code: code.to_owned(), message: String::new() };
            assert_eq!(error.class(), class, "{status} {code}");
        }
        assert_eq!(ClientError::nobody(3).class(), FailureClass::Transient);
    }

    #[test]
    fn a_refusal_names_the_word_after_the_sentence() {
        let ours = ClientError::refused(StatusCode::CONFLICT, br#"{"code":"busy","message":"n2 moves"}"#);
        assert_eq!(ours.to_string(), "n2 moves (409 busy)");
        let other = ClientError::refused(StatusCode::BAD_GATEWAY, b"no upstream\n");
        assert_eq!(other.to_string(), "no upstream (502)");
    }

    #[test]
    fn a_refusal_that_is_not_ours_shows_an_excerpt() {
        let ClientError::Refused { code, message, .. } =
            ClientError::refused(StatusCode::BAD_GATEWAY, "<html>é".repeat(100).as_bytes())
        else {
            panic!("not a refusal")
        };
        assert!(code.is_empty() && message.starts_with("<html>") && message.len() <= EXCERPT_BYTES_MAX + 3);
    }
}
