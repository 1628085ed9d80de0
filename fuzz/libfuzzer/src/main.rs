//! One fuzz target under libFuzzer: `HEADWATER_FUZZ_TARGET` names it. `fuzz/run` builds and calls this.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use headwater_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

/// Memory that decoding one input may hold at a time, in bytes. Inputs are a few kB, so whoever asks for more has
/// believed a length that nothing backs.
const LIVE_BYTES_MAX: usize = 128 << 20;

/// The system's allocator, but an end with a core of the matter when [`LIVE_BYTES_MAX`] is exceeded: libFuzzer's own
/// `-malloc_limit_mb` needs a sanitizer.
struct Bounded;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

impl Bounded {
    fn take(bytes: usize) {
        if LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > LIVE_BYTES_MAX {
            // The report allocates, too.
            LIVE_BYTES.store(0, Ordering::Relaxed);
            panic!("{bytes} bytes more than {LIVE_BYTES_MAX} bytes in use");
        }
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::take(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::take(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _was = LIVE_BYTES
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |live| Some(live.saturating_sub(layout.size())));
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::take(size);
        let _was = LIVE_BYTES
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |live| Some(live.saturating_sub(layout.size())));
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

fn target() -> &'static Target {
    static TARGET: OnceLock<&'static Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(" ");
        let Ok(name) = std::env::var("HEADWATER_FUZZ_TARGET") else {
            println!("{}", names());
            std::process::exit(0);
        };
        let found = TARGETS.iter().find(|target| target.name == name);
        let Some(found) = found else {
            println!("no target {name}; there are {}", names());
            std::process::exit(2);
        };
        if let Ok(folder) = std::env::var("HEADWATER_FUZZ_SEEDS") {
            for (nth, seed) in (found.seeds)().iter().enumerate() {
                std::fs::write(format!("{folder}/seed-{nth:03}"), seed).expect("the folder of seeds is there");
            }
            std::process::exit(0);
        }
        found
    })
}

fuzz_target!(
    init: {
        target();
    },
    |data: &[u8]| (target().run)(data)
);
