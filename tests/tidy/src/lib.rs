//! Checks of the tree itself: which crates may know which, and what no file may hold.
