//! One fixed hash for in-memory tables, and the mixer of the state digest.
//!
//! No seed and no platform difference, so nothing a replica decides can depend on it by accident.
//! Colliding keys can be crafted by someone who may already create subjects at will; they then cost
//! themselves look-up time, not correctness.

const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xd6e8_feb8_6659_fd93;

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

fn read(bytes: &[u8]) -> u64 {
    let mut raw = [0; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(raw)
}

/// Hash of a byte string.
pub fn bytes(input: &[u8]) -> u64 {
    let mut state = fold(input.len() as u64 ^ K0, K1);
    let mut chunks = input.chunks_exact(16);
    for chunk in &mut chunks {
        state = fold(read(&chunk[..8]) ^ state, read(&chunk[8..]) ^ K0);
    }
    let rest = chunks.remainder();
    let (low, high) = rest.split_at(rest.len().min(8));
    fold(fold(read(low) ^ state, read(high) ^ K1), K0)
}

/// A well-mixed number from two, for the digest: a sum of these over live messages identifies the set.
pub fn mix64(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(K0) ^ b.rotate_left(32).wrapping_mul(K1);
    x ^= x >> 32;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 29;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn close_keys_hash_apart() {
        let hashes: HashSet<u64> = (0..20_000).map(|i| super::bytes(format!("orders.{i}.new").as_bytes())).collect();
        assert_eq!(hashes.len(), 20_000);
        let low: HashSet<u64> = hashes.iter().map(|h| h & 0xffff).collect();
        assert!(low.len() > 15_000, "low bits spread over only {} values", low.len());
    }

    #[test]
    fn length_matters_even_for_zero_bytes() {
        assert_ne!(super::bytes(b"\0"), super::bytes(b"\0\0"));
    }
}
