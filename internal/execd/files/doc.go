// Package files is the file service of execd: it serves [Features] below /v1/fs
// and the older /files and /directories on the same core. The daemon's server
// wraps it and checks the token; the service has no access control of its own
// and acts with the daemon's rights (root of the sandbox).
//
// Paths are literal bytes. Every operation resolves its path once to a
// directory descriptor and then works on that descriptor and a single name, so
// that nothing is checked by one name and used by another. A confined request
// resolves with openat2(RESOLVE_BENEATH), or by walking the path component by
// component where the kernel lacks that or a link has to be read.
//
// Content is replaced by a rename of a complete file: written without a name
// (O_TMPFILE), given its bits and owner on the descriptor, synced, linked under
// a hidden name beside the target and renamed over it. Readers see the old
// file or the new one, and a failure leaves the old one and nothing else.
// A daemon that is killed while something has a hidden name leaves it; the next
// one removes it ([Notes]).
// Extended attributes and ACLs of the replaced file are not carried over, and
// its other hard links keep the old content.
//
// The service needs /proc. Memory is constant for transfers; a listing holds
// the names of one directory per level. At most 512 levels are listed. JSON
// bodies are limited to 4 MiB. Transfers have no time limit: the caller is
// trusted, and a dead peer is found by TCP keep-alive.
//
// Whole trees go out as archives (archive.go) and come in from hostile ones
// (extract.go), are searched by content (grep.go), and are watched with inotify
// while a client asks for it (watch.go, watchtree.go). Uploads that can be
// resumed (session.go) are the one thing that outlives a request.
//
// Everything is safe for concurrent use. Handlers start no goroutines; a timer
// ends an upload that nobody goes on with.
package files
