// Package execd is the daemon inside a sandbox: it runs commands, keeps
// long-lived processes, mounts the file handler, and is PID 1. cmd/execd calls
// [Main]; tests use [New].
//
// It serves HTTP/1.1 with a token. Refusals are wire.Error bodies. It holds no
// state on disk. Its limits: 1024 connections, 512 commands, 256 processes,
// request bodies of 8 MiB, headers of 64 KiB, a header read time of 10 s.
//
// A Server is safe for concurrent use.
package execd
