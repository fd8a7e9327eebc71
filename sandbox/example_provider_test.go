package sandbox_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
	"github.com/astrabox/astrabox/sandbox/sandboxtest"
)

// A provider's package installs its driver when it is imported, in init:
//
//	func init() { sandbox.Register(localDriver) }
//
// Declares is the same value that Capabilities gives.
var localDriver = sandbox.Driver{
	Name: "local", SeamVersion: "1.0", Declares: localDeclares,
	Settings: []sandbox.Setting{{Name: "LOCAL_SANDBOX_MAX", Doc: "how many sandboxes there may be at once; default 10"}},
	New: func(_ context.Context, h sandbox.Host) (sandbox.Provider, error) {
		p := &local{host: h, most: 10, boxes: map[string]*localBox{}}
		if v := h.Getenv("LOCAL_SANDBOX_MAX"); v != "" {
			if _, err := fmt.Sscan(v, &p.most); err != nil || p.most < 1 {
				return nil, sandbox.Errorf(sandbox.CodeInvalid, "LOCAL_SANDBOX_MAX must be a number above zero")
			}
		}
		return p, nil
	},
}

var localDeclares = sandbox.Capabilities{CorrelatedCreate: true, InventoryListing: true, ProcessSessions: true}

// local is a whole provider. Its sandboxes are directories of this machine with
// an execd for each: they isolate nothing, and end with this process, so it is
// to be read and not to be used.
type local struct {
	sandbox.Base // no Renew, no workspace route, no endpoint that names a sandbox
	host         sandbox.Host
	most         int

	mu    sync.Mutex
	boxes map[string]*localBox
}

type localBox struct {
	info     sandbox.Info
	dir      string
	endpoint sandbox.Endpoint
	cmd      *exec.Cmd
	expire   *time.Timer
}

func (*local) Name() string                       { return "local" }
func (*local) Capabilities() sandbox.Capabilities { return localDeclares }

// Create makes one, or gives the one that this assignment has already. What it
// can't do with a spec it refuses, rather than leave it out.
func (p *local) Create(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := localDeclares.CheckLevel("local", spec.PermissionLevel); err != nil {
		return nil, err
	}
	switch {
	case spec.NetworkPolicy != nil:
		return nil, sandbox.Missing("CreateNetworkPolicy", "local")
	case spec.CredentialProxy || !spec.Vault.IsZero():
		return nil, sandbox.Missing("EgressCredentialInjection", "local")
	case spec.Image != "host" || spec.Entrypoint != nil || len(spec.WorkspaceMounts) > 0 || spec.WaitForPort != 0:
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "the backend local has the image host, and no entrypoints, mounts or waiting for ports")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	id, made, err := p.start(spec)
	if err != nil {
		return nil, err
	}
	if !made {
		return p.Connect(ctx, id)
	}
	// From here on there is a sandbox: whatever fails, it is destroyed again,
	// also when ctx has ended, and where that can't be proven the error names it.
	h, err := p.ready(ctx, id, spec)
	if err == nil {
		return h, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if d := sandbox.ConfirmDestroyed(ctx, p, id); !d.ConfirmsGone(id) {
		e := sandbox.Errorf(sandbox.CodeCleanupUnconfirmed, "it may be left (%s): %w", d.Detail, err)
		e.SandboxID = id
		return nil, e
	}
	return nil, err
}

// ready makes Dir, which also proves that the sandbox answers.
func (p *local) ready(ctx context.Context, id string, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	h, err := p.Connect(ctx, id)
	if err != nil {
		return nil, err
	}
	if spec.RequireCommandChannel {
		if r, err := h.Commands().Run(ctx, sandbox.Command{Line: ":"}); err != nil || r.ExitCode != 0 {
			return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox runs no commands (status %d): %w", r.ExitCode, err)
		}
	}
	if spec.Dir != "" {
		if err := h.Files().MakeDir(ctx, spec.Dir, sandbox.DirOptions{Parents: true}); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// start makes a sandbox unless the assignment has one: two creates of one
// assignment at once make one sandbox.
func (p *local) start(spec sandbox.CreateSpec) (id string, made bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, b := range p.boxes {
		m := b.info.Metadata
		if m[sandbox.KeyInstallation] != spec.InstallationID || m[sandbox.KeyAssignmentID] != spec.AssignmentID {
			continue
		}
		if m[sandbox.KeySessionID] != spec.OwnerID {
			return "", false, sandbox.Errorf(sandbox.CodeAssignmentConflict, "assignment %s has a sandbox of another owner", spec.AssignmentID)
		}
		return id, false, nil
	}
	if len(p.boxes) >= p.most {
		return "", false, sandbox.Errorf(sandbox.CodeCapacity, "there are %d sandboxes already", p.most)
	}
	dir, err := os.MkdirTemp("", "local-sandbox-")
	if err != nil {
		return "", false, sandbox.Errorf(sandbox.CodeUnavailable, "no directory for a sandbox: %w", err)
	}
	b := &localBox{dir: dir, info: sandbox.Info{ID: "local-" + rand.Text(), State: "running", Image: spec.Image,
		Metadata: spec.OwnershipMetadata(), CreatedAt: time.Now()}}
	if err := p.execd(b, spec); err != nil {
		return "", false, errors.Join(sandbox.Errorf(sandbox.CodeUnavailable, "no daemon for a sandbox: %w", err), os.RemoveAll(dir))
	}
	if spec.TTL > 0 { // the lease is held to whether AstraBox asks or not
		b.info.ExpiresAt = time.Now().Add(spec.TTL)
		b.expire = time.AfterFunc(spec.TTL, func() { _, _ = p.Kill(context.Background(), b.info.ID) })
	}
	p.boxes[b.info.ID] = b
	return b.info.ID, true, nil
}

// execd runs the daemon. Its token goes over a pipe: arguments and the
// environment of a process can be read by others.
func (p *local) execd(b *localBox, spec sandbox.CreateSpec) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := l.Addr().String()
	l.Close() // somebody could take it now: a provider for use inherits the listener
	token, give, err := os.Pipe()
	if err != nil {
		return err
	}
	defer token.Close()
	defer give.Close()
	ready, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	b.cmd = exec.Command(p.host.ExecdPath, "--listen", address, "--token-fd", "3", "--ready-fd", "4")
	b.cmd.Dir, b.cmd.ExtraFiles = b.dir, []*os.File{token, tell}
	b.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "TMPDIR=" + b.dir}
	for k, v := range spec.Env {
		b.cmd.Env = append(b.cmd.Env, k+"="+v)
	}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = b.cmd.Start()
	tell.Close()
	if err != nil {
		return err
	}
	secret := rand.Text()
	b.endpoint = sandbox.Endpoint{URL: &url.URL{Scheme: "http", Host: address}, Headers: map[string]string{wire.HeaderToken: secret}}
	_, err = give.WriteString(secret + "\n")
	give.Close()
	if err == nil {
		var said []byte // that the daemon listens, or why it never will
		if said, err = io.ReadAll(ready); err == nil && string(said) != wire.ReadyLine {
			err = fmt.Errorf("execd doesn't start: %s", said)
		}
	}
	if err != nil {
		return errors.Join(err, b.cmd.Process.Kill(), b.cmd.Wait())
	}
	return nil
}

// get finds a sandbox. A context that has ended asks for nothing any more.
func (p *local) get(ctx context.Context, id string, missing sandbox.Code) (*localBox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := sandbox.CheckID(id); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if b, ok := p.boxes[id]; ok {
		return b, nil
	}
	e := sandbox.Errorf(missing, "there is no sandbox %s", id)
	e.SandboxID = id
	return nil, e
}

func (p *local) Connect(ctx context.Context, id string) (sandbox.Handle, error) {
	b, err := p.get(ctx, id, sandbox.CodeGone)
	if err != nil {
		return nil, err
	}
	return &localHandle{id: id, conn: execd.Dial(execd.Fixed(b.endpoint), nil)}, nil
}

// Kill says true only after the process was seen to have ended and its
// directory to be gone.
func (p *local) Kill(ctx context.Context, id string) (gone bool, err error) {
	b, err := p.get(ctx, id, sandbox.CodeNotFound)
	if err != nil {
		return false, err
	}
	if b.expire != nil {
		b.expire.Stop()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.boxes[id] != b {
		return false, nil // another call was faster
	}
	_ = b.cmd.Process.Signal(syscall.SIGTERM) // execd ends what it started; Wait tells the rest
	_ = b.cmd.Wait()
	if err := os.RemoveAll(b.dir); err != nil {
		return false, sandbox.Errorf(sandbox.CodeUnavailable, "its directory can't be removed: %w", err)
	}
	delete(p.boxes, id)
	return true, nil
}

func (p *local) Probe(ctx context.Context, id string) (sandbox.Observation, error) {
	b, err := p.get(ctx, id, sandbox.CodeNotFound)
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		return sandbox.Observation{Status: sandbox.ObservedGone}, nil
	case err != nil:
		return sandbox.Observation{}, err
	}
	return sandbox.Observation{Status: sandbox.ObservedOK, State: b.info.State}, nil
}

func (p *local) ExpiresAt(ctx context.Context, id string) (time.Time, error) {
	b, err := p.get(ctx, id, sandbox.CodeNotFound)
	if err != nil {
		return time.Time{}, err
	}
	return b.info.ExpiresAt, nil
}

// FindSandboxByAssignment makes CorrelatedCreate true.
func (p *local) FindSandboxByAssignment(ctx context.Context, installation, assignment string) (sandbox.Info, bool, error) {
	if installation == "" || assignment == "" { // it would match what isn't meant
		return sandbox.Info{}, false, sandbox.Errorf(sandbox.CodeInvalid, "installation and assignment must be named")
	}
	infos, _, err := p.ListSandboxes(ctx, map[string]string{
		sandbox.KeyManagedBy: sandbox.ManagedBy, sandbox.KeyInstallation: installation, sandbox.KeyAssignmentID: assignment}, "")
	switch {
	case err != nil || len(infos) == 0:
		return sandbox.Info{}, false, err
	case len(infos) > 1:
		return sandbox.Info{}, false, sandbox.Errorf(sandbox.CodeAssignmentAmbiguous, "assignment %s has %d sandboxes", assignment, len(infos))
	}
	return infos[0], true, nil
}

// ListSandboxes and DescribeSandbox make InventoryListing true. There are few,
// so one page holds all.
func (p *local) ListSandboxes(ctx context.Context, metadata map[string]string, page string) (infos []sandbox.Info, next string, err error) {
	if page != "" {
		return nil, "", sandbox.Errorf(sandbox.CodeInvalid, "%q is not a page of this listing", page)
	}
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(p.boxes)) {
		has := true
		for k, v := range metadata {
			has = has && p.boxes[id].info.Metadata[k] == v
		}
		if has {
			infos = append(infos, p.boxes[id].described())
		}
	}
	return infos, "", nil
}

func (p *local) DescribeSandbox(ctx context.Context, id string) (sandbox.Info, error) {
	b, err := p.get(ctx, id, sandbox.CodeNotFound)
	if err != nil {
		return sandbox.Info{}, err
	}
	return b.described(), nil
}

// described is a copy: the caller may change the map.
func (b *localBox) described() sandbox.Info {
	i := b.info
	i.Metadata = maps.Clone(i.Metadata)
	return i
}

// Close ends what this process holds. The sandboxes of most providers outlive
// it; these can't.
func (p *local) Close() error {
	p.mu.Lock()
	ids := slices.Collect(maps.Keys(p.boxes))
	p.mu.Unlock()
	var failed error
	for _, id := range ids {
		if d := sandbox.ConfirmDestroyed(context.Background(), p, id); !d.ConfirmsGone(id) {
			failed = errors.Join(failed, fmt.Errorf("sandbox %s: %s", id, d.Detail))
		}
	}
	return failed
}

// localHandle has the ready-made faces over execd.
type localHandle struct {
	id   string
	conn *execd.Conn
}

func (h *localHandle) SandboxID() string            { return h.id }
func (h *localHandle) Files() sandbox.Files         { return execd.Files(h.conn) }
func (h *localHandle) Commands() sandbox.Commands   { return execd.Commands(h.conn) }
func (h *localHandle) Processes() sandbox.Processes { return execd.Processes(h.conn) }

// Endpoint reaches a port of this machine, which is the sandbox's too.
func (h *localHandle) Endpoint(_ context.Context, port int) (sandbox.Endpoint, error) {
	if err := sandbox.CheckPort(port); err != nil {
		return sandbox.Endpoint{}, err
	}
	return sandbox.Endpoint{URL: &url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}}, nil
}

func (h *localHandle) SignedEndpoint(_ context.Context, port int, _ time.Time) (sandbox.Endpoint, error) {
	if err := sandbox.CheckPort(port); err != nil {
		return sandbox.Endpoint{}, err
	}
	return sandbox.Endpoint{}, sandbox.Errorf(sandbox.CodeSignedUnsupported, "the backend local can't sign addresses")
}

// execdBinary gives the daemon's binary, built when it isn't there.
func execdBinary() (path string, remove func(), err error) {
	if path, err = filepath.Abs("../bin/execd"); err != nil {
		return "", nil, err
	}
	if _, err := os.Stat(path); err == nil {
		return path, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "execd-")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, "execd")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/execd").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, func() { os.RemoveAll(dir) }, err
}

// What AstraBox does with a provider, in short.
func Example_provider() {
	ctx := context.Background()
	path, remove, err := execdBinary()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()

	p, err := localDriver.New(ctx, sandbox.Host{Getenv: func(string) string { return "" }, Log: slog.New(slog.DiscardHandler),
		InstallationID: "ins_1", ExecdPath: path})
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := sandbox.Bind(localDriver, p)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()

	spec := sandbox.CreateSpec{
		InstallationID: "ins_1", OwnerID: "conv_1", AssignmentID: "asg_1", Image: "host",
		ResourceLimits: map[string]string{"cpu": "1"}, ResourceRequests: map[string]string{"cpu": "100m"},
		TTL: time.Hour, RequireCommandChannel: true,
	}
	h, err := b.Create(ctx, spec)
	if err != nil {
		fmt.Println(err)
		return
	}
	again, err := b.Create(ctx, spec)
	fmt.Println("the same assignment, the same sandbox:", err == nil && again.SandboxID() == h.SandboxID())

	r, err := h.Commands().Run(ctx, sandbox.Command{Line: "echo hello; exit 3"})
	fmt.Printf("%q, status %d, %v\n", r.Stdout, r.ExitCode, err)

	_, err = sandbox.BrowserLink(ctx, h, 8080, time.Now().Add(time.Hour))
	fmt.Println(err)
	fmt.Println("paused:", b.Pauser != nil)

	d := sandbox.ConfirmDestroyed(ctx, b, h.SandboxID())
	fmt.Println(d.Outcome)
	_, err = b.Connect(ctx, h.SandboxID())
	fmt.Println(errors.Is(err, sandbox.ErrGone))

	// Output:
	// the same assignment, the same sandbox: true
	// "hello\n", status 3, <nil>
	// SANDBOX_SIGNED_ENDPOINT_UNSUPPORTED: the backend local can't sign addresses
	// paused: false
	// gone
	// true
}

// A provider author's test: the structural suite needs no sandbox.
func TestExampleProvider(t *testing.T) {
	p, err := localDriver.New(t.Context(), sandbox.Host{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Provider(t, conform.Subject{Driver: localDriver, Provider: p}, conform.Options{})
}
