//! Model APIs: pure encoders and decoders, and the HTTP client that carries them.
