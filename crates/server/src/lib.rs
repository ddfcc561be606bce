//! Serving the catalogue to MCP clients over stdio and HTTP.
