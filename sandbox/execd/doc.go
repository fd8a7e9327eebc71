// Package execd gives the Files, Commands and Processes faces of a sandbox
// whose image runs an execd daemon. A provider makes one [Conn] for each
// sandbox from what its Endpoint(Port) returns and hands out the three faces.
//
// The daemon is AstraBox's own, with which every promise of the seam holds, or
// another of the OpenSandbox line, over which Commands and Processes work as
// far as its older protocol carries them: [Deviations] lists the rest. Which of
// the two it is gets asked once. [Keep] adds reconnecting to an attachment.
//
// A Conn holds no connection of its own: requests share a bounded pool of HTTP
// connections, and the endpoint is asked for again when the sandbox refuses the
// token or the connection, which is what happens after a resume.
//
// Everything is safe for concurrent use, apart from Attachment.Recv.
//
// Failures: a sandbox that couldn't be asked is sandbox.ErrUnreachable; a
// daemon that lacks what is needed is a *sandbox.Error of code
// SANDBOX_UNSUPPORTED; a cancelled or expired context gives the context's
// error. Nothing here retries a request that may have had an effect.
package execd
