//! The agent loop: a pure, serialisable state machine and the driver around it.
