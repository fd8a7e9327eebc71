// Package operation remembers which creations were asked for, so that a client
// that lost an answer can ask again without starting a second process. The
// daemon's handlers of /command/operations, /pty/operations and /execution/
// call it; it starts nothing itself.
//
// An operation is named by its client: the id of this registry, the time at
// which the registry gave that out (Unix seconds), and 8 to 128 random
// characters, joined by dots. The time in the name is what lets a registry
// refuse a name that it has forgotten, instead of starting anew.
//
// A Registry is safe for concurrent use. Errors are *Error.
package operation

import (
	"crypto/rand"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultCapacity bounds how many operations are remembered.
	DefaultCapacity = 4096
	// Retention is how long an operation is remembered from the time in its
	// name, longer while what it created is active.
	Retention = 24 * time.Hour
	// sweepEvery is how often forgotten operations are looked for.
	sweepEvery = time.Hour
)

// Kinds of operations.
const (
	Command = "command"
	PTY     = "pty"
)

// State of a creation.
type State string

// The states.
const (
	Creating State = "creating"
	Created  State = "created"
	Failed   State = "failed"
)

// Error is a refusal.
type Error struct {
	Code    string
	Message string
}

func (e *Error) Error() string { return e.Message }

// Codes of Error.
const (
	CodeInvalidID = "invalid_operation_id"
	CodeKind      = "invalid_operation_kind"
	CodeConflict  = "operation_conflict"
	CodeInstance  = "operation_instance_mismatch"
	CodeExpired   = "operation_expired"
	CodeNotFound  = "operation_not_found"
	CodeCapacity  = "operation_capacity_exceeded"
)

// Instance is what a client needs to name operations.
type Instance struct {
	ID        string `json:"instance_id"`
	IssuedAt  int64  `json:"issued_at"` // Unix seconds
	Retention int64  `json:"retention_seconds"`
	Capacity  int    `json:"capacity"`
}

// Operation is what is told of one.
type Operation struct {
	ID      string    `json:"id"` // of what was created
	Kind    string    `json:"kind"`
	State   State     `json:"state"`
	Expires time.Time `json:"expires_at"`
}

// Made is what an operation makes.
type Made struct {
	Handle string
	// Active reports whether it still runs; nil: never.
	Active func() bool
	// Drop releases it when the operation is forgotten; nil: nothing to do.
	Drop func()
}

type key struct{ kind, name string }

type entry struct {
	Operation
	Made
	request [32]byte
}

// Registry remembers operations.
type Registry struct {
	instance string
	capacity int
	now      func() time.Time

	mu      sync.Mutex
	entries map[key]*entry
	swept   time.Time
}

// New makes a Registry for capacity operations. now is the clock; nil: one that begins with the machine's and isn't set.
func New(capacity int, now func() time.Time) *Registry {
	if now == nil {
		// Goes on from here however the machine's clock is set: a step back
		// would make names that were just given out lie in the future.
		start := time.Now()
		now = func() time.Time { return start.Add(time.Since(start)) }
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return &Registry{instance: hex.EncodeToString(b[:]), capacity: capacity, now: now, entries: map[key]*entry{}, swept: now()}
}

// Instance gives the first two parts of names from now on.
func (r *Registry) Instance() Instance {
	return Instance{r.instance, r.now().Unix(), int64(Retention / time.Second), r.capacity}
}

// Claim names a creation of kind with a request that hashes to request. When
// the name is new, made is called and the caller is the owner, who has to
// create and call Finish. Otherwise it gives what the owner made.
func (r *Registry) Claim(kind, name string, request [32]byte, made func() (Made, error)) (op Operation, owner bool, err error) {
	end, err := r.parse(kind, name)
	if err != nil {
		return op, false, err
	}
	var dropped []*entry
	defer func() { drop(dropped) }()
	r.mu.Lock()
	defer r.mu.Unlock()
	k := key{kind, name}
	if e := r.entries[k]; e != nil && !r.forgotten(e) {
		if e.request != request {
			return op, false, &Error{CodeConflict, "the operation was asked for with another request"}
		}
		return e.Operation, false, nil
	}
	if r.now().After(end) {
		return op, false, expired()
	}
	if len(r.entries) >= r.capacity || r.now().Sub(r.swept) > sweepEvery {
		dropped = r.sweep()
	}
	if len(r.entries) >= r.capacity {
		return op, false, &Error{CodeCapacity, "as many operations as the daemon remembers (" + strconv.Itoa(r.capacity) + ") are remembered"}
	}
	m, err := made()
	if err != nil {
		return op, false, err
	}
	e := &entry{Operation{m.Handle, kind, Creating, end.UTC()}, m, request}
	r.entries[k] = e
	return e.Operation, true, nil
}

// Finish says how a claimed creation went.
func (r *Registry) Finish(kind, name string, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[key{kind, name}]; e != nil {
		if e.State = Created; failed {
			e.State = Failed
		}
	}
}

// Get finds an operation.
func (r *Registry) Get(kind, name string) (Operation, error) {
	end, err := r.parse(kind, name)
	if err != nil {
		return Operation{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e := r.entries[key{kind, name}]; {
	case e != nil && !r.forgotten(e):
		return e.Operation, nil
	case r.now().After(end):
		return Operation{}, expired()
	default:
		return Operation{}, &Error{CodeNotFound, "no such operation was asked for"}
	}
}

func expired() error {
	return &Error{CodeExpired, "the operation's time is over; what became of it is no longer known"}
}

// forgotten reports whether an entry's time is over. What is being made or
// active outlives its time.
func (r *Registry) forgotten(e *entry) bool {
	return r.now().After(e.Expires) && e.State != Creating && (e.Active == nil || !e.Active())
}

// sweep removes the forgotten.
func (r *Registry) sweep() (dropped []*entry) {
	r.swept = r.now()
	for k, e := range r.entries {
		if r.forgotten(e) {
			delete(r.entries, k)
			dropped = append(dropped, e)
		}
	}
	return dropped
}

func drop(list []*entry) {
	for _, e := range list {
		if e.Drop != nil {
			e.Drop()
		}
	}
}

var token = regexp.MustCompile(`^[A-Za-z0-9_-]{8,128}$`)

// parse checks a name and gives the end of its time.
func (r *Registry) parse(kind, name string) (end time.Time, err error) {
	if kind != Command && kind != PTY {
		return end, &Error{CodeKind, "kind is neither command nor pty"}
	}
	parts := strings.Split(name, ".")
	if len(parts) != 3 || len(parts[0]) != 32 || !token.MatchString(parts[2]) {
		return end, &Error{CodeInvalidID, "operation_id is not <instance_id>.<issued_at>.<8 to 128 of A-Z a-z 0-9 _ ->"}
	}
	issued, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || issued < 0 || strconv.FormatInt(issued, 10) != parts[1] {
		return end, &Error{CodeInvalidID, "the time in operation_id is not a number of seconds"}
	}
	if parts[0] != r.instance {
		return end, &Error{CodeInstance, "operation_id belongs to another daemon or an earlier run of this one; what became of it is not known"}
	}
	if issued > r.now().Unix() {
		return end, &Error{CodeInvalidID, "the time in operation_id has not come yet"}
	}
	return time.Unix(issued, 0).Add(Retention), nil
}
