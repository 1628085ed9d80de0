//! Tokio as openraft knows it, with one difference: who waits for the same value wakes in the order of waiting.
//! Tokio's own channel draws that order from a number that no seed decides.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use openraft::rt::watch::SendError;
use openraft::rt::{AsyncRuntime, OptionalSend, OptionalSync, RecvError, Watch, WatchReceiver, WatchSender};
use openraft_rt_tokio::TokioRuntime;
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Ordered(TokioRuntime);

impl AsyncRuntime for Ordered {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = OrderedWatch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        TokioRuntime::thread_rng()
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

struct Versioned<T> {
    version: u64,
    value: T,
}

struct Shared<T> {
    latest: RwLock<Versioned<T>>,
    news: Notify,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

pub(crate) struct OrderedWatch;

pub(crate) struct Sender<T>(Arc<Shared<T>>);

pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

pub(crate) struct Latest<'a, T>(RwLockReadGuard<'a, Versioned<T>>);

impl<T> Deref for Latest<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Shared<T> {
    fn latest(&self) -> Latest<'_, T> {
        Latest(self.latest.read_recursive())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.news.notify_waiters();
        }
    }
}

impl<T> Receiver<T> {
    fn new(shared: &Arc<Shared<T>>, seen: u64) -> Self {
        shared.receivers.fetch_add(1, Ordering::AcqRel);
        Self { shared: Arc::clone(shared), seen }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self::new(&self.shared, self.seen)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Watch for OrderedWatch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = Latest<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(value: T) -> (Sender<T>, Receiver<T>) {
        let shared = Arc::new(Shared {
            latest: RwLock::new(Versioned { version: 0, value }),
            news: Notify::new(),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(0),
        });
        let receiver = Receiver::new(&shared, 0);
        (Sender(shared), receiver)
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<OrderedWatch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Ordering::Acquire) == 0 {
            return Err(SendError(value));
        }
        self.send_if_modified(|latest| {
            *latest = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let mut latest = self.0.latest.write();
        let is_new = modify(&mut latest.value);
        if is_new {
            latest.version += 1;
            drop(latest);
            self.0.news.notify_waiters();
        }
        is_new
    }

    fn borrow_watched(&self) -> Latest<'_, T> {
        self.0.latest()
    }

    fn subscribe(&self) -> Receiver<T> {
        Receiver::new(&self.0, self.0.latest.read_recursive().version)
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<OrderedWatch, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            // Made before the look: what is sent after it ends this wait.
            let news = self.shared.news.notified();
            let version = self.shared.latest.read_recursive().version;
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if self.shared.senders.load(Ordering::Acquire) == 0 {
                return Err(RecvError(()));
            }
            news.await;
        }
    }

    fn borrow_watched(&self) -> Latest<'_, T> {
        self.shared.latest()
    }

    fn borrow_and_update(&mut self) -> Latest<'_, T> {
        let latest = self.shared.latest.read_recursive();
        self.seen = latest.version;
        Latest(latest)
    }
}
