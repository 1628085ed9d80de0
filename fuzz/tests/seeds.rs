//! Every target over its seeds and changes of them: keeps targets and seeds alive, and finds what is easy to find.

use headwater_fuzz::{TARGETS, Target};

/// Changed inputs per target; each is a few microseconds' work.
const CHANGES: u64 = 4_000;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

/// A seed with a byte changed, a piece cut out or doubled, or the end of another seed.
fn changed(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(3) {
        let at = random.below(input.len());
        match random.below(5) {
            0 => input.truncate(at),
            1 => {
                let end = (at + random.below(16)).min(input.len());
                input.drain(at.min(end)..end);
            }
            2 => {
                let piece = input[at.min(input.len())..].iter().copied().take(random.below(16)).collect::<Vec<_>>();
                input.splice(at..at, piece);
            }
            3 => {
                let other = &seeds[random.below(seeds.len())];
                input.truncate(at);
                input.extend_from_slice(&other[random.below(other.len()).min(other.len())..]);
            }
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = [0, 1, 0x7f, 0x80, 0xfe, 0xff, *byte ^ 1, *byte ^ 0x40][random.below(8)];
                }
            }
        }
    }
    input
}

fn check(target: &Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty());
    for seed in &seeds {
        (target.run)(seed);
    }
    (target.run)(b"");
    let mut random = Random(0x4857);
    for _ in 0..CHANGES {
        (target.run)(&changed(&seeds, &mut random));
    }
}

#[test]
fn no_target_panics_on_its_seeds_and_changes_of_them() {
    let threads: Vec<_> =
        TARGETS.iter().map(|target| (target.name, std::thread::spawn(move || check(target)))).collect();
    let failed: Vec<&str> =
        threads.into_iter().filter_map(|(name, thread)| thread.join().is_err().then_some(name)).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn names_are_words_of_the_command_line() {
    for target in TARGETS {
        assert!(target.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{}", target.name);
        assert!(!target.about.is_empty());
        assert_eq!(TARGETS.iter().filter(|other| other.name == target.name).count(), 1, "{}", target.name);
    }
}
