//! Checkpoints, and the images in them.

use std::path::Path;

use headwater_core::catalog::Catalog;
use headwater_core::stream::StreamState;

use super::{Page, chain};
use crate::checkpoint::{Checkpoint, CheckpointImage, MetaCheckpoint};
use crate::disk::Disk;

pub(super) fn checkpoint(disk: &dyn Disk, path: &Path, bytes: Vec<u8>, page: &mut Page) {
    if bytes.starts_with(b"HWMETCKP") {
        return match MetaCheckpoint::decode(path, bytes) {
            Ok(found) => catalogue(&found, page),
            Err(error) => page.damage(&chain(&error)),
        };
    }
    match Checkpoint::decode(path, bytes) {
        Ok(found) => stream(disk, path, &found, page),
        Err(error) => page.damage(&chain(&error)),
    }
}

fn stream(disk: &dyn Disk, path: &Path, found: &Checkpoint, page: &mut Page) {
    let Checkpoint { stream, state, blocks } = found;
    let CheckpointImage { group, applied, membership, snapshot, image, digest } = state;
    page.line(&format!("  stream {stream} group {group} applied {}@{}", applied.index, applied.term));
    page.line(&format!("  digest {digest:016x}"));
    opaque("membership", membership, page);
    opaque("snapshot", snapshot, page);
    match StreamState::from_image(image) {
        Ok(state) => stream_image(image.len(), &state, page),
        Err(error) => page.damage(&format!("image of {} bytes: {}", image.len(), chain(&error))),
    }
    let there = path.parent().and_then(|dir| disk.list(&dir.join("blocks")).ok());
    for extent in blocks {
        page.line(&format!("  block {} up to {}", extent.block, extent.valid_bytes));
        let name = extent.block.file_name();
        let is_missing = |there: &Vec<crate::disk::DiskEntry>| !there.iter().any(|entry| name.ends_with(&entry.name));
        if there.as_ref().is_some_and(is_missing) {
            page.damage(&format!("no file {name}"));
        }
    }
}

fn stream_image(len: usize, state: &StreamState, page: &mut Page) {
    let name = &state.settings().name;
    let removed = if state.is_removed() { ", removed" } else { "" };
    page.line(&format!("  image {len} bytes: {name} generation {}{removed}", state.generation()));
    page.line(&format!(
        "    seq {}..={}, {} messages of {} bytes, {} deleted between",
        state.first_seq(),
        state.last_seq(),
        state.messages(),
        state.bytes(),
        state.deleted().len(),
    ));
    let durability = state.durability().desired();
    let json = serde_json::to_string(&durability).unwrap_or_default();
    page.line(&format!("    durability {json}"));
    for (id, consumer) in state.consumers().iter() {
        let (delivered, floor) = (consumer.delivered(), consumer.ack_floor());
        page.line(&format!(
            "    consumer {} {}: delivered {} (seq {}), ack floor {} (seq {}), {} pending",
            id.get(),
            consumer.config().name,
            delivered.consumer,
            delivered.stream,
            floor.consumer,
            floor.stream,
            consumer.pending_count(),
        ));
    }
}

fn catalogue(found: &MetaCheckpoint, page: &mut Page) {
    let MetaCheckpoint { applied, membership, snapshot, image } = found;
    page.line(&format!("  catalogue applied {}@{}", applied.index, applied.term));
    opaque("membership", membership, page);
    opaque("snapshot", snapshot, page);
    let catalog = match Catalog::from_image(image) {
        Ok(catalog) => catalog,
        Err(error) => return page.damage(&format!("image of {} bytes: {}", image.len(), chain(&error))),
    };
    let (cluster, fence) = (catalog.cluster_id().unwrap_or("-"), catalog.fence());
    let holder = fence.holder.as_deref().unwrap_or("-");
    page.line(&format!("  image {} bytes: cluster {cluster}, fence {} of {holder}", image.len(), fence.number.get()));
    for node in catalog.nodes() {
        page.line(&format!(
            "    node {} incarnation {} boot epoch {} {:?}, cluster {}",
            node.name, node.incarnation, node.boot_epoch, node.state, node.addresses.cluster
        ));
    }
    let replicas = |stream: &headwater_core::catalog::StreamEntry| {
        let names: Vec<&str> = stream.replicas.iter().map(|replica| replica.node.as_str()).collect();
        names.join(" ")
    };
    for stream in catalog.streams() {
        page.line(&format!(
            "    stream {} {}/{} group {} generation {} on {}",
            stream.id,
            stream.key.account,
            stream.key.name,
            stream.group,
            stream.generation,
            replicas(stream)
        ));
    }
    for removal in catalog.removals() {
        let awaiting: Vec<&str> = removal.awaiting.iter().map(|node| node.as_str()).collect();
        let key = &removal.stream.key;
        page.line(&format!(
            "    removed stream {} {}/{} at {}, awaiting {}",
            removal.stream.id,
            key.account,
            key.name,
            removal.index,
            awaiting.join(" ")
        ));
    }
}

/// Bytes that this crate gives no meaning to: text as it stands.
fn opaque(what: &str, bytes: &[u8], page: &mut Page) {
    match std::str::from_utf8(bytes) {
        Ok("") => page.line(&format!("  {what} -")),
        Ok(text) if !text.contains(char::is_control) => page.line(&format!("  {what} {text}")),
        _ => page.line(&format!("  {what} {} bytes", bytes.len())),
    }
}
