// Package fleettest is an in-memory sandbox backend for tests: its sandboxes
// hold files, processes with numbered output, and a scripted Agent program that
// speaks the Agent Client Protocol.
//
// A test gives each simulated process of the platform its own [Client] of one
// [Backend]; [Client.Crash] cuts that process off as kill -9 would, while the
// sandboxes go on. Everything runs on the time of the test's synctest bubble.
// Knobs make the backend slow, forgetful or untruthful.
package fleettest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// Backend is the world outside the platform.
type Backend struct {
	// Knobs; set them before use, or with Set.
	CreateTime time.Duration                      // of a create
	CreateErr  func(sandbox.CreateSpec) error     // what a create fails with
	RecvGap    time.Duration                      // before each piece of output arrives
	ListAll    bool                               // a listing isn't filtered
	KillKeeps  bool                               // a delete is accepted and does nothing
	PauseFails bool                               // a pause isn't established
	ProbeErr   error                              // what a probe fails with
	SendLimit  int                                // bytes of the next sends that arrive before the connection breaks; 0: all
	Chunk      int                                // output is given in pieces of this size; 0: whole
	ChunkGap   time.Duration                      // between two pieces that a program says
	Mute       func(box *Box, prompt string) bool // the program takes no stdin from here on
	NoBinary   error                              // the program's binary is missing, and writing it fails with this

	mu       sync.Mutex
	boxes    map[string]*Box
	next     int
	executed []string
	creates  int
}

// Caps is what the backend declares by default.
var Caps = sandbox.Capabilities{Pause: true, CorrelatedCreate: true, InventoryListing: true, ProcessSessions: true}

// New makes an empty backend.
func New() *Backend { return &Backend{boxes: map[string]*Box{}} }

// Set changes knobs while the backend is in use.
func (b *Backend) Set(f func(b *Backend)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b)
}

// Box is one sandbox.
type Box struct {
	b       *Backend
	id      string
	state   string // running, paused, terminated
	meta    map[string]string
	created time.Time
	expires time.Time
	files   map[string][]byte
	procs   map[string]*process
}

// Boxes gives the ids and states of the sandboxes that exist.
func (b *Backend) Boxes() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]string{}
	for id, box := range b.boxes {
		out[id] = box.state
	}
	return out
}

// Creates is the number of creates that made a sandbox.
func (b *Backend) Creates() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.creates
}

// Executed gives the prompts that programs began to work on, in order.
func (b *Backend) Executed() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.executed)
}

// Lose makes a sandbox vanish with everything in it.
func (b *Backend) Lose(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if box, ok := b.boxes[id]; ok {
		box.endAll()
		delete(b.boxes, id)
	}
}

// PauseFromOutside pauses a sandbox behind the platform's back.
func (b *Backend) PauseFromOutside(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if box, ok := b.boxes[id]; ok {
		box.state = "paused"
		box.endAll()
	}
}

// DropAttachments breaks all connections to processes.
func (b *Backend) DropAttachments() {
	b.mu.Lock()
	var procs []*process
	for _, box := range b.boxes {
		for _, p := range box.procs {
			procs = append(procs, p)
		}
	}
	b.mu.Unlock()
	for _, p := range procs {
		p.mu.Lock()
		a := p.holder
		p.mu.Unlock()
		if a != nil {
			a.drop(errCut)
		}
	}
}

// EndProcesses ends the processes of a sandbox as a crash of each would.
func (b *Backend) EndProcesses(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if box, ok := b.boxes[id]; ok {
		for _, p := range box.procs {
			p.end(sandbox.Exit{Code: 139, Signal: "SIGSEGV"}, false)
		}
	}
}

// Expires is the scheduled end of a sandbox.
func (b *Backend) Expires(id string) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if box, ok := b.boxes[id]; ok {
		return box.expires
	}
	return time.Time{}
}

// Plant adds a running sandbox with that metadata, as somebody else's create.
func (b *Backend) Plant(meta map[string]string, age time.Duration) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	box := b.add(meta)
	box.created = time.Now().Add(-age)
	return box.id
}

// Close ends all processes; a synctest bubble needs it.
func (b *Backend) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, box := range b.boxes {
		box.endAll()
	}
}

func (b *Backend) add(meta map[string]string) *Box {
	b.next++
	b.creates++
	box := &Box{b: b, id: fmt.Sprintf("box%d", b.next), state: "running", meta: maps.Clone(meta), created: time.Now(),
		files: map[string][]byte{}, procs: map[string]*process{}}
	b.boxes[box.id] = box
	return box
}

func (box *Box) endAll() {
	for _, p := range box.procs {
		p.end(sandbox.Exit{Code: 137, Signal: "SIGKILL"}, true)
	}
	clear(box.procs)
}

// Client is one platform process's access to the backend; it is the provider.
type Client struct {
	sandbox.Base
	b    *Backend
	caps sandbox.Capabilities
	dead atomic.Bool
	mu   sync.Mutex
	atts []*attachment
}

// Bound makes a client with those capabilities.
func (b *Backend) Bound(caps sandbox.Capabilities) (*sandbox.Bound, *Client) {
	c := &Client{b: b, caps: caps}
	bound, err := sandbox.Bind(sandbox.Driver{Name: "fake", Declares: caps}, c)
	if err != nil {
		panic(err)
	}
	return bound, c
}

// Crash cuts the client off: calls fail, attachments break, sandboxes go on.
// They don't notice: a process is still held by the attachment that is dead.
func (c *Client) Crash() {
	c.dead.Store(true)
	c.mu.Lock()
	atts := c.atts
	c.atts = nil
	c.mu.Unlock()
	for _, a := range atts {
		a.p.mu.Lock()
		a.fail(errCut)
		a.p.signal()
		a.p.mu.Unlock()
	}
}

var errCut = fmt.Errorf("%w: the connection was cut", sandbox.ErrUnreachable)

func (c *Client) gate() error {
	if c.dead.Load() {
		return errCut
	}
	return nil
}

// Name is the registry key.
func (c *Client) Name() string { return "fake" }

// Capabilities states the facts.
func (c *Client) Capabilities() sandbox.Capabilities { return c.caps }

// Create makes a sandbox after CreateTime. When the client crashes meanwhile
// the sandbox is made all the same; when ctx ends it is not.
func (c *Client) Create(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	if err := c.gate(); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	c.b.mu.Lock()
	took, fails := c.b.CreateTime, c.b.CreateErr
	c.b.mu.Unlock()
	if took > 0 {
		select {
		case <-time.After(took):
		case <-ctx.Done():
			if !c.dead.Load() {
				return nil, ctx.Err()
			}
		}
	}
	if fails != nil {
		if err := fails(spec); err != nil {
			return nil, err
		}
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if box := c.b.byAssignment(spec.InstallationID, spec.AssignmentID); box != nil && c.caps.CorrelatedCreate {
		return &handle{c, box.id}, c.gate()
	}
	box := c.b.add(spec.OwnershipMetadata())
	if spec.TTL > 0 {
		box.expires = time.Now().Add(spec.TTL)
	}
	if err := c.gate(); err != nil {
		return nil, err
	}
	return &handle{c, box.id}, nil
}

func (b *Backend) byAssignment(installation, assignment string) *Box {
	for _, box := range b.boxes {
		if box.meta[sandbox.KeyInstallation] == installation && box.meta[sandbox.KeyAssignmentID] == assignment {
			return box
		}
	}
	return nil
}

func (c *Client) box(id string, missing sandbox.Code) (*Box, error) {
	if err := c.gate(); err != nil {
		return nil, err
	}
	if box, ok := c.b.boxes[id]; ok {
		return box, nil
	}
	return nil, sandbox.Errorf(missing, "there is no sandbox %s", id)
}

// Connect reaches a running sandbox.
func (c *Client) Connect(_ context.Context, id string) (sandbox.Handle, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	box, err := c.box(id, sandbox.CodeGone)
	if err != nil {
		return nil, err
	}
	if box.state != "running" {
		return nil, sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox %s is %s", id, box.state)
	}
	return &handle{c, id}, nil
}

// Kill destroys, or with KillKeeps says so.
func (c *Client) Kill(_ context.Context, id string) (bool, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	box, err := c.box(id, sandbox.CodeNotFound)
	if err != nil {
		return false, err
	}
	if c.b.KillKeeps {
		return false, nil
	}
	box.endAll()
	delete(c.b.boxes, id)
	return true, nil
}

// Probe observes.
func (c *Client) Probe(_ context.Context, id string) (sandbox.Observation, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.b.ProbeErr != nil {
		return sandbox.Observation{}, c.b.ProbeErr
	}
	box, err := c.box(id, sandbox.CodeNotFound)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return sandbox.Observation{Status: sandbox.ObservedGone}, nil
	}
	if err != nil {
		return sandbox.Observation{}, err
	}
	return sandbox.Observation{Status: sandbox.ObservedOK, State: box.state}, nil
}

// Renew never shortens.
func (c *Client) Renew(_ context.Context, id string, ttl time.Duration) (time.Time, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	box, err := c.box(id, sandbox.CodeNotFound)
	if err != nil {
		return time.Time{}, err
	}
	if end := time.Now().Add(ttl); end.After(box.expires) {
		box.expires = end
	}
	return box.expires, nil
}

// Pause ends the processes.
func (c *Client) Pause(_ context.Context, id string) (bool, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	box, err := c.box(id, sandbox.CodeNotFound)
	if err != nil || c.b.PauseFails {
		return false, err
	}
	box.state = "paused"
	box.endAll()
	return true, nil
}

// Resume resumes.
func (c *Client) Resume(_ context.Context, id string) (bool, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	box, err := c.box(id, sandbox.CodeNotFound)
	if err != nil {
		return false, err
	}
	box.state = "running"
	return true, nil
}

// FindSandboxByAssignment finds.
func (c *Client) FindSandboxByAssignment(_ context.Context, installation, assignment string) (sandbox.Info, bool, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if err := c.gate(); err != nil {
		return sandbox.Info{}, false, err
	}
	box := c.b.byAssignment(installation, assignment)
	if box == nil {
		return sandbox.Info{}, false, nil
	}
	return box.info(), true, nil
}

func (box *Box) info() sandbox.Info {
	return sandbox.Info{ID: box.id, State: box.state, Metadata: maps.Clone(box.meta), CreatedAt: box.created, ExpiresAt: box.expires}
}

// ListSandboxes gives pages of two, so that paging is used.
func (c *Client) ListSandboxes(_ context.Context, want map[string]string, page string) ([]sandbox.Info, string, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if err := c.gate(); err != nil {
		return nil, "", err
	}
	var infos []sandbox.Info
	for _, id := range slices.Sorted(maps.Keys(c.b.boxes)) {
		box := c.b.boxes[id]
		match := id > page
		for k, v := range want {
			match = match && (c.b.ListAll || box.meta[k] == v)
		}
		if match {
			infos = append(infos, box.info())
		}
	}
	if len(infos) > 2 {
		return infos[:2], infos[1].ID, nil
	}
	return infos, "", nil
}

// DescribeSandbox describes one.
func (c *Client) DescribeSandbox(_ context.Context, id string) (sandbox.Info, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	box, err := c.box(id, sandbox.CodeNotFound)
	if err != nil {
		return sandbox.Info{}, err
	}
	return box.info(), nil
}

type handle struct {
	c  *Client
	id string
}

func (h *handle) SandboxID() string            { return h.id }
func (h *handle) Files() sandbox.Files         { return &files{h: h} }
func (h *handle) Commands() sandbox.Commands   { return commands{h} }
func (h *handle) Processes() sandbox.Processes { return processes{h} }

func (h *handle) Endpoint(context.Context, int) (sandbox.Endpoint, error) {
	return sandbox.Endpoint{}, sandbox.Errorf(sandbox.CodeUnsupported, "no ports here")
}

func (h *handle) SignedEndpoint(context.Context, int, time.Time) (sandbox.Endpoint, error) {
	return sandbox.Endpoint{}, sandbox.Errorf(sandbox.CodeSignedUnsupported, "no ports here")
}

// running gives the box if it runs; Backend.mu is held.
func (h *handle) running() (*Box, error) {
	if err := h.c.gate(); err != nil {
		return nil, err
	}
	box, ok := h.c.b.boxes[h.id]
	if !ok || box.state != "running" {
		return nil, fmt.Errorf("%w: nothing answers", sandbox.ErrUnreachable)
	}
	return box, nil
}

// commands knows one script: the platform's preparation of a sandbox.
type commands struct{ h *handle }

func (c commands) Run(_ context.Context, cmd sandbox.Command) (sandbox.CommandResult, error) {
	c.h.c.b.mu.Lock()
	defer c.h.c.b.mu.Unlock()
	box, err := c.h.running()
	if err != nil {
		return sandbox.CommandResult{}, err
	}
	if cmd.Env["ACCOUNT"] == "" {
		return sandbox.CommandResult{ExitCode: 127}, nil
	}
	if body, ok := box.files[cmd.Env["BINARY"]]; ok && c.h.c.b.NoBinary == nil {
		sum := strings.TrimSpace(string(box.files[cmd.Env["MARK"]]))
		sum, _, _ = strings.Cut(sum, " ")
		return sandbox.CommandResult{Stdout: fmt.Appendf(nil, "%s %d\n", sum, len(body))}, nil
	}
	return sandbox.CommandResult{}, nil
}

func (c commands) Stream(context.Context, sandbox.Command, io.Writer, io.Writer) (sandbox.CommandResult, error) {
	return sandbox.CommandResult{}, errors.ErrUnsupported
}
