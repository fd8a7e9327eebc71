package sandboxtest_test

// closet is the provider that docs/guide-add-a-provider.md builds: each sandbox
// is a private, writable view of this machine's root with an execd inside. It
// shares the machine's network and kernel, and is no place for strangers' code.

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Step 1: the driver.

const settingDir = "ASTRABOX_CLOSET_DIR"

var declared = sandbox.Capabilities{ProcessSessions: true}

// A provider's package hands its driver to sandbox.Register in an init function.
var driver = sandbox.Driver{
	Name:        "closet",
	SeamVersion: "1.0",
	Declares:    declared,
	Settings:    []sandbox.Setting{{Name: settingDir, Doc: "directory for the sandboxes' files"}},
	New: func(_ context.Context, h sandbox.Host) (sandbox.Provider, error) {
		dir := h.Getenv(settingDir)
		if !filepath.IsAbs(dir) {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "%s must be an absolute path", settingDir)
		}
		return &closet{dir: dir, execd: h.ExecdPath, boxes: map[string]*box{}}, nil
	},
}

type closet struct {
	sandbox.Base // no workspace route, no endpoint that names a sandbox
	dir, execd   string

	mu    sync.Mutex
	boxes map[string]*box
}

func (*closet) Name() string                       { return "closet" }
func (*closet) Capabilities() sandbox.Capabilities { return declared }

// Step 2: one sandbox, which is a process tree in namespaces of its own.

const script = `set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
ulimit -v "$2"
exec chroot "$1/root" /proc/self/fd/3 --listen-fd 4 --token-fd 5 --ready-fd 6`

type box struct {
	id, dir string
	cmd     *exec.Cmd
	ended   chan struct{} // closed when nothing of it is left
	base    *url.URL      // of its execd
	token   string

	mu      sync.Mutex
	expires time.Time   // zero: never
	lease   *time.Timer // nil: never
}

// start starts a sandbox and returns when its execd answers. Where it fails
// nothing is left.
func (c *closet) start(ctx context.Context, spec sandbox.CreateSpec, kib int64) (_ *box, err error) {
	b := &box{id: "c-" + strings.ToLower(rand.Text()), token: rand.Text(), ended: make(chan struct{})}
	b.dir = filepath.Join(c.dir, b.id)
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(b.dir))
		}
	}()
	program, err := os.Open(c.execd)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	socket, err := listener.File()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	token, giveToken, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer token.Close()
	isReady, ready, err := os.Pipe()
	if err != nil {
		giveToken.Close()
		return nil, err
	}
	defer isReady.Close()

	b.base = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	b.cmd = exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh", b.dir, strconv.FormatInt(kib, 10))
	b.cmd.ExtraFiles = []*os.File{program, socket, token, ready} // descriptors 3 to 6
	b.cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	for k, v := range spec.Env {
		b.cmd.Env = append(b.cmd.Env, k+"="+v)
	}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	err = b.cmd.Start()
	ready.Close()
	if err == nil {
		// The token goes through a pipe: arguments and environments can be read.
		_, err = giveToken.WriteString(b.token)
	}
	err = errors.Join(err, giveToken.Close())
	if b.cmd.Process == nil {
		return nil, err
	}
	go func() {
		_ = b.cmd.Wait() // how it ended is of no interest: with unshare everything in its namespace is gone
		close(b.ended)
	}()
	if err == nil {
		err = awaitReady(ctx, isReady)
	}
	if err != nil {
		b.end()
	}
	return b, err
}

// awaitReady reads execd's line, which says that it is ready or why it never will be.
func awaitReady(ctx context.Context, r *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })
	defer stop()
	_ = r.SetReadDeadline(time.Now().Add(20 * time.Second))
	line := make([]byte, 1024)
	n, err := r.Read(line)
	switch said := string(line[:n]); {
	case said == wire.ReadyLine:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox doesn't start: %w", err)
	default:
		return sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox doesn't start: execd %s", strings.TrimSpace(said))
	}
}

// end kills everything in the sandbox and waits until it is gone.
func (b *box) end() {
	b.mu.Lock()
	if b.lease != nil {
		b.lease.Stop()
	}
	b.mu.Unlock()
	_ = b.cmd.Process.Kill() // an error means that it has ended
	<-b.ended
	_ = os.RemoveAll(b.dir) // an empty directory: the rest was the namespace's
}

// Step 3: Create refuses what it can't do, and leaves nothing behind.

func (c *closet) Create(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	kib, err := c.check(spec)
	if err != nil {
		return nil, err
	}
	b, err := c.start(ctx, spec, kib)
	if err != nil {
		return nil, unavailable(err)
	}
	c.mu.Lock()
	c.boxes[b.id] = b
	c.mu.Unlock()
	if spec.TTL > 0 {
		b.mu.Lock()
		b.expires = time.Now().Add(spec.TTL)
		b.lease = time.AfterFunc(spec.TTL, func() { c.remove(b.id) })
		b.mu.Unlock()
	}
	h := c.handle(b)
	if err := prepare(ctx, h, spec); err != nil {
		c.remove(b.id)
		return nil, unavailable(err)
	}
	return h, nil
}

// check refuses what this backend can't do, and gives the memory limit.
func (c *closet) check(spec sandbox.CreateSpec) (kib int64, err error) {
	unsupported := func(what string) (int64, error) {
		return 0, sandbox.Errorf(sandbox.CodeUnsupported, "closet: %s isn't supported", what)
	}
	switch {
	case spec.Image != "host":
		return 0, sandbox.Errorf(sandbox.CodeInvalid, "closet: there is no image %q, only host", spec.Image)
	case spec.Entrypoint != nil:
		return unsupported("an Entrypoint")
	case len(spec.WorkspaceMounts) > 0:
		return unsupported("a WorkspaceMount")
	case spec.WaitForPort != 0:
		return unsupported("WaitForPort")
	case spec.NetworkPolicy != nil:
		return 0, sandbox.Missing("CreateNetworkPolicy", c.Name())
	case spec.CredentialProxy || !spec.Vault.IsZero():
		return 0, sandbox.Missing("EgressCredentialInjection", c.Name())
	}
	if err := declared.CheckLevel(c.Name(), spec.PermissionLevel); err != nil {
		return 0, err
	}
	for k, q := range spec.ResourceLimits {
		if k != "memory" {
			return unsupported("a limit of " + k)
		}
		m := memory.FindStringSubmatch(q)
		if m == nil {
			return 0, sandbox.Errorf(sandbox.CodeInvalid, "closet: ResourceLimits: memory must be a number of Mi or Gi, not %q", q)
		}
		if kib, err = strconv.ParseInt(m[1], 10, 32); err != nil {
			return 0, sandbox.Errorf(sandbox.CodeInvalid, "closet: ResourceLimits: memory: %w", err)
		}
		kib <<= map[string]int{"Mi": 10, "Gi": 20}[m[2]]
	}
	return kib, nil
}

var memory = regexp.MustCompile(`^([1-9][0-9]*)(Mi|Gi)$`)

func prepare(ctx context.Context, h sandbox.Handle, spec sandbox.CreateSpec) error {
	if spec.RequireCommandChannel {
		if _, err := h.Commands().Run(ctx, sandbox.Command{Line: ":"}); err != nil {
			return err
		}
	}
	if spec.Dir != "" {
		return h.Files().MakeDir(ctx, spec.Dir, sandbox.DirOptions{Parents: true})
	}
	return nil
}

// unavailable gives an error a code where it has none. What a context says stays.
func unavailable(err error) error {
	if sandbox.CodeOf(err) != "" || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return sandbox.Errorf(sandbox.CodeUnavailable, "closet: %w", err)
}

// Step 4: the operations that take an id.

// find gives a sandbox that is there; missing is the code when it isn't.
func (c *closet) find(ctx context.Context, id string, missing sandbox.Code) (*box, error) {
	if err := sandbox.CheckID(id); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	b := c.boxes[id]
	c.mu.Unlock()
	if b != nil {
		select {
		case <-b.ended: // by itself
			c.remove(id)
		default:
			return b, nil
		}
	}
	return nil, sandbox.Errorf(missing, "closet: there is no sandbox %s", id)
}

func (c *closet) remove(id string) {
	c.mu.Lock()
	b := c.boxes[id]
	delete(c.boxes, id)
	c.mu.Unlock()
	if b != nil {
		b.end()
	}
}

func (c *closet) Connect(ctx context.Context, id string) (sandbox.Handle, error) {
	b, err := c.find(ctx, id, sandbox.CodeGone)
	if err != nil {
		return nil, err
	}
	return c.handle(b), nil
}

// Kill returns when nothing of the sandbox is left, so that it may say gone.
func (c *closet) Kill(ctx context.Context, id string) (bool, error) {
	b, err := c.find(ctx, id, sandbox.CodeNotFound)
	if err != nil {
		return sandbox.CodeOf(err) == sandbox.CodeNotFound, err
	}
	c.remove(id)
	<-b.ended // also when somebody else removes it just now
	return true, nil
}

func (c *closet) Probe(ctx context.Context, id string) (sandbox.Observation, error) {
	_, err := c.find(ctx, id, sandbox.CodeNotFound)
	switch {
	case errors.Is(err, sandbox.ErrNotFound):
		return sandbox.Observation{Status: sandbox.ObservedGone}, nil
	case err != nil:
		return sandbox.Observation{}, err
	}
	return sandbox.Observation{Status: sandbox.ObservedOK, State: "running"}, nil
}

func (c *closet) ExpiresAt(ctx context.Context, id string) (time.Time, error) {
	b, err := c.find(ctx, id, sandbox.CodeNotFound)
	if err != nil {
		return time.Time{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.expires, nil
}

// Renew never shortens, and a sandbox without an end keeps none.
func (c *closet) Renew(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
	if ttl <= 0 {
		return time.Time{}, sandbox.Errorf(sandbox.CodeInvalid, "closet: a renewal by %v would end the sandbox", ttl)
	}
	b, err := c.find(ctx, id, sandbox.CodeNotFound)
	if err != nil {
		return time.Time{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if end := time.Now().Add(ttl); b.lease != nil && end.After(b.expires) {
		b.lease.Reset(ttl)
		b.expires = end
	}
	return b.expires, nil
}

// Close ends every sandbox. A real backend's sandboxes outlive AstraBox; these
// are children of its process.
func (c *closet) Close() error {
	c.mu.Lock()
	var ids []string
	for id := range c.boxes {
		ids = append(ids, id)
	}
	c.mu.Unlock()
	for _, id := range ids {
		c.remove(id)
	}
	execd.CloseIdleConnections()
	return nil
}

// Step 5: the handle. Its faces are those of package execd.

type handle struct {
	b    *box
	conn *execd.Conn
}

func (c *closet) handle(b *box) sandbox.Handle {
	return handle{b, execd.Dial(execd.Fixed(sandbox.Endpoint{URL: b.base, Headers: b.headers()}), nil)}
}

func (b *box) headers() map[string]string { return map[string]string{"X-EXECD-ACCESS-TOKEN": b.token} }

func (h handle) SandboxID() string            { return h.b.id }
func (h handle) Files() sandbox.Files         { return execd.Files(h.conn) }
func (h handle) Commands() sandbox.Commands   { return execd.Commands(h.conn) }
func (h handle) Processes() sandbox.Processes { return execd.Processes(h.conn) }

// Endpoint goes through execd, which passes requests on to other ports.
func (h handle) Endpoint(_ context.Context, port int) (sandbox.Endpoint, error) {
	if err := sandbox.CheckPort(port); err != nil {
		return sandbox.Endpoint{}, err
	}
	return sandbox.Endpoint{URL: h.b.base.JoinPath("proxy", strconv.Itoa(port), "/"), Headers: h.b.headers()}, nil
}

// SignedEndpoint is refused: nothing here signs.
func (h handle) SignedEndpoint(_ context.Context, port int, _ time.Time) (sandbox.Endpoint, error) {
	if err := sandbox.CheckPort(port); err != nil {
		return sandbox.Endpoint{}, err
	}
	return sandbox.Endpoint{}, sandbox.Errorf(sandbox.CodeSignedUnsupported, "closet: endpoints can't be signed")
}

var (
	_ sandbox.Provider = (*closet)(nil)
	_ io.Closer        = (*closet)(nil)
	_ fmt.Stringer     = (*closet)(nil)
)

// String shows no sandbox's token, which printing the fields might.
func (c *closet) String() string { return "closet in " + c.dir }
