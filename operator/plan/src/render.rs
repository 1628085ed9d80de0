//! Plans as text, for events, logs and golden files.

use std::fmt::Write as _;

use headwater_crds::jetstream::FieldChange;
use serde_json::Value;

use crate::step::{Plan, Step};

/// One line per fact: `do <step>`, then `wait: <what>`; `done` if there is neither.
pub fn plan(plan: &Plan) -> String {
    let mut text = String::new();
    if let Some(next) = &plan.step {
        let _ = writeln!(text, "do {}", step(next)); // writing to a String cannot fail
    }
    for waiting in &plan.waiting {
        let _ = writeln!(text, "wait: {waiting}"); // as above
    }
    if text.is_empty() {
        text.push_str("done\n");
    }
    text
}

/// A step in one line.
pub fn step(step: &Step) -> String {
    match step {
        Step::CreateStream { .. } => "create the stream".to_owned(),
        Step::UpdateStream { changes, generation, .. } => {
            format!("update at generation {generation}: {}", list(changes))
        }
        Step::Adopt { changes, previous, .. } => {
            let from = match previous {
                Some(owner) => format!(" from {owner}"),
                None => String::new(),
            };
            format!("adopt the stream{from}: {}", list(changes))
        }
        Step::ProposeDurability { generation, durability } => {
            format!("propose durability {durability} as generation {generation}")
        }
        Step::GrantDurability { node, generation } => {
            format!("grant generation {generation} to {node}")
        }
        Step::TransferLeadership { from, to } => format!("transfer leadership from {from} to {to}"),
        Step::DeleteStream { .. } => "delete the stream and its messages".to_owned(),
    }
}

fn list(changes: &[FieldChange]) -> String {
    if changes.is_empty() {
        return "nothing changes".to_owned();
    }
    let texts: Vec<String> = changes.iter().map(change).collect();
    texts.join(", ")
}

fn change(change: &FieldChange) -> String {
    format!("{} {} → {}", change.field, short(&change.from), short(&change.to))
}

/// Longest value shown (characters): events hold 1 kB in all.
const VALUE_CHARS_MAX: usize = 60;

fn short(value: &Value) -> String {
    let text = match value {
        Value::Null => return "unset".to_owned(),
        Value::String(text) if text.is_empty() => return "\"\"".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    if text.chars().count() > VALUE_CHARS_MAX {
        let head: String = text.chars().take(VALUE_CHARS_MAX).collect();
        return format!("{head}…");
    }
    text
}
