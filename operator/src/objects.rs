//! Writes to our own kinds: status by server-side apply, finalizers by guarded patch.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube_client::api::{Patch, PatchParams};
use kube_client::core::Resource;
use kube_client::{Api, Client, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use headwater_crds::{STREAM_FINALIZER, Stream};

use crate::context::FIELD_MANAGER;

/// Publishes the whole status that this operator owns. What it no longer contains disappears.
///
/// The UID travels along, so that an object that was deleted and created anew does not get its predecessor's status.
///
/// # Errors
/// The API server's.
pub(crate) async fn write_status<K, S>(client: &Client, object: &K, status: &S) -> kube_client::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    S: Serialize,
{
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let patch = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"uid": object.uid()},
        "status": status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch_status(&object.name_any(), &params, &Patch::Apply(&patch)).await?;
    Ok(())
}

/// Adds or removes our finalizer, unless the object changed since it was read.
///
/// # Errors
/// The API server's; 409 when the object changed, 404 when it is gone.
pub(crate) async fn set_finalizer(client: &Client, stream: &Stream, wanted: bool) -> kube_client::Result<()> {
    let api: Api<Stream> = Api::namespaced(client.clone(), &stream.namespace().unwrap_or_default());
    let mut finalizers: Vec<&str> =
        stream.finalizers().iter().map(String::as_str).filter(|name| *name != STREAM_FINALIZER).collect();
    if wanted {
        finalizers.push(STREAM_FINALIZER);
    }
    let patch = json!({"metadata": {
        "uid": stream.uid(),
        "resourceVersion": stream.resource_version(),
        "finalizers": finalizers,
    }});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    api.patch(&stream.name_any(), &params, &Patch::Merge(&patch)).await?;
    Ok(())
}

/// HTTP status of an API server's refusal.
pub(crate) fn code(error: &kube_client::Error) -> Option<u16> {
    match error {
        kube_client::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
