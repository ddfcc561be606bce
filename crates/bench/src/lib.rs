//! toolwright-bench: times the code, side by side with peers.
