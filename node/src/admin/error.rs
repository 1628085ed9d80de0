//! How the admin API refuses: a status, a word for programs, a sentence for people.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use headwater_core::catalog::{CatalogRefusal, FenceRefusal};
use headwater_core::durability::DurabilityOutcome;
use headwater_core::stream::Rejection;
use headwater_plan::wire::ErrorBody;
use headwater_protocol::api::error::{self, ApiError};

use crate::jetstream::streams::ChangeError;
use crate::meta::MetaError;
use crate::stream::commands::CommandError;

/// Why a call was not served.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: String,
    pub(crate) message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), message: message.into() }
    }

    /// 400: the request itself is wrong.
    pub(super) fn bad(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// 404 with the code by which callers know that it comes from a node.
    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 409: the state of the cluster speaks against it.
    pub(super) fn conflict(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    /// 403.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// 401.
    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    /// 413.
    pub(super) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// 503: it may work later, or at another node.
    pub(super) fn unavailable(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    /// 503: nobody leads what the call is about.
    pub(super) fn no_leader(message: impl Into<String>) -> Self {
        Self::unavailable("no_leader", message)
    }

    /// An HTTP status as the JetStream API gives it, or 400 if it is none.
    fn api(e: &ApiError) -> Self {
        let status = StatusCode::from_u16(e.code).ok().filter(|s| s.is_client_error() || s.is_server_error());
        if e.err_code == error::STREAM_NOT_FOUND.err_code {
            return Self::not_found(e.description.clone());
        }
        if e.err_code == error::CLUSTER_NO_PEERS.err_code {
            // Nodes may still be on their way into the catalogue.
            return Self::unavailable("no_peers", e.description.clone());
        }
        Self::new(status.unwrap_or(StatusCode::BAD_REQUEST), &e.err_code.to_string(), e.description.clone())
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} {})", self.message, self.status.as_u16(), self.code)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody { code: self.code, message: self.message })).into_response()
    }
}

impl From<MetaError> for Refusal {
    fn from(e: MetaError) -> Self {
        match e {
            MetaError::NoLeader => Self::no_leader(e.to_string()),
            MetaError::Unknown(_) => Self::unavailable("timeout", e.to_string()),
        }
    }
}

impl From<FenceRefusal> for Refusal {
    fn from(e: FenceRefusal) -> Self {
        match e {
            FenceRefusal::Held { number, ref holder, expires } => {
                let left_ms = expires.get().saturating_sub(crate::clock::now().get()) / 1_000_000;
                let message = format!("fence {} is held by {holder} for another {left_ms} ms", number.get());
                Self::conflict("fence_held", message)
            }
            FenceRefusal::Stale { .. } | FenceRefusal::Expired { .. } | FenceRefusal::Unknown { .. } => {
                Self::conflict("stale_fence", e.to_string())
            }
        }
    }
}

impl From<CatalogRefusal> for Refusal {
    fn from(e: CatalogRefusal) -> Self {
        let message = e.to_string();
        match e {
            CatalogRefusal::Fence(fence) => fence.into(),
            CatalogRefusal::StreamNotFound | CatalogRefusal::NodeNotFound { .. } => Self::not_found(message),
            // The plan was made before somebody else created or changed it.
            CatalogRefusal::StreamExists
            | CatalogRefusal::WrongGeneration { .. }
            | CatalogRefusal::WrongGroup { .. } => Self::conflict("stale_generation", message),
            CatalogRefusal::WrongOwner => Self::conflict("not_owner", message),
            CatalogRefusal::SubjectsOverlap { ref with } => Self::bad("10065", format!("{message}: {with}")),
            CatalogRefusal::NoReplicas | CatalogRefusal::BadReplica { .. } => Self::unavailable("no_peers", message),
            ref other => {
                let code = other.err_code().map_or_else(|| "refused".to_owned(), |c| c.to_string());
                Self::bad(&code, message)
            }
        }
    }
}

impl From<ChangeError> for Refusal {
    fn from(e: ChangeError) -> Self {
        match e {
            ChangeError::Api(e) => Self::api(&e),
            ChangeError::Refused(e) => e.into(),
            ChangeError::Meta(e) => e.into(),
        }
    }
}

impl From<CommandError> for Refusal {
    fn from(e: CommandError) -> Self {
        let message = e.to_string();
        match e {
            CommandError::NotLeader => Self::unavailable("not_leader", message),
            CommandError::Unknown => Self::unavailable("timeout", message),
            CommandError::Rejected(
                Rejection::Stale { .. } | Rejection::Durability(DurabilityOutcome::Stale { .. }),
            ) => Self::conflict("stale_generation", message),
            CommandError::Rejected(Rejection::Durability(DurabilityOutcome::Busy(_))) => {
                Self::conflict("busy", message)
            }
            CommandError::Rejected(Rejection::Removed | Rejection::NotFound) => Self::not_found(message),
            CommandError::Rejected(_) => Self::conflict("refused", message),
        }
    }
}
