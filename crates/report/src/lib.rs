//! Runs in, one self-contained HTML page and figures out.
