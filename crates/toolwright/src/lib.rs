//! Toolwright: the library that users depend on, and the command-line program.
