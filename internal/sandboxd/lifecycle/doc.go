// Package lifecycle makes, pauses, resumes, ends and watches the sandboxes of
// the bundled lifecycle service. Package api calls it for HTTP requests;
// internal/sandboxd starts and stops it.
//
// What a sandbox should be stands in a row (package state); what it is, is
// asked from the runtime. Every operation writes its intent before it touches
// the runtime and its outcome afterwards, so that a service that was killed at
// any point finds out, when it starts again, what to finish: see decide. The
// same function repairs what failed while the service runs.
//
// Who does what to one sandbox: the effects of operations hold the sandbox's
// lock; a delete and an expiry first move the row to Stopping, without the
// lock, which every other operation notices when it wants to store its outcome.
//
// All methods may be called concurrently. Their errors are [*Error].
package lifecycle
