//! Doors to the decoders of what peers send, for the fuzz targets: each takes any bytes, must not panic, and checks
//! that what decodes encodes to what decodes alike. Beside each decoder is the code, here only the names.

pub use crate::broker::decode_any as broker;
pub use crate::jetstream::decode_any as jetstream;
pub use crate::raft::decode_any as raft;
pub use crate::stream::decode_any as stream;
pub use crate::transport::decode_any as transport;
