package isolated

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	maxBinds   = 64
	maxPath    = 4095
	maxKeys    = 256
	maxIdle    = int64(math.MaxInt32)
	anyUser    = math.MaxUint32 // what system calls read as "leave it"
	modeRW     = "rw"
	modeRO     = "ro"
	modeLayer  = "overlay"
	profStrict = "strict"
	profShared = "balanced"
	uidSetpriv = "setpriv"
	uidUserNS  = "userns"
	envDeny    = "deny"
	envAllow   = "allow"
)

// Request is the body of a request for a session, as the older protocol has it.
type Request struct {
	Profile   string          `json:"profile,omitempty"` // strict (default): own /tmp; balanced: the sandbox's
	Workspace Workspace       `json:"workspace"`
	Writable  []string        `json:"extra_writable,omitempty"`
	Binds     []BindRequest   `json:"binds,omitempty"`
	Overlays  json.RawMessage `json:"overlays,omitempty"`  // what later clients ask for and there isn't
	ShareNet  *bool           `json:"share_net,omitempty"` // default true
	Env       *EnvPassthrough `json:"env_passthrough,omitempty"`
	UID       *uint32         `json:"uid,omitempty"` // default: the daemon's
	GID       *uint32         `json:"gid,omitempty"` // default: the account's
	UIDMode   string          `json:"uid_mode,omitempty"`
	Idle      *int64          `json:"idle_timeout_seconds,omitempty"` // 0 or missing: none
}

// Workspace is the directory that a session may change.
type Workspace struct {
	Path string `json:"path"`
	Mode string `json:"mode,omitempty"` // rw (default) or ro
	// Source is the directory of the sandbox that is shown at Path; "": Path.
	Source string `json:"source,omitempty"`
}

// BindRequest shows Source at Dest; "": at the same place.
type BindRequest struct {
	Source   string `json:"source"`
	Dest     string `json:"dest,omitempty"`
	ReadOnly bool   `json:"readonly,omitempty"`
}

// EnvPassthrough says which variables of the daemon a session has: all but
// those that look like secrets and Keys (deny, the default), or Keys alone.
type EnvPassthrough struct {
	Mode string   `json:"mode,omitempty"`
	Keys []string `json:"keys,omitempty"`
}

// check refuses what is wrong, and fills in what is left out. account finds
// the group of a user; it is asked when GID is left out.
func (r *Request) check(account func(uid uint32) (gid uint32)) error {
	if r.Workspace.Mode == "" {
		r.Workspace.Mode = modeRW
	}
	if r.Workspace.Source == "" {
		r.Workspace.Source = r.Workspace.Path
	}
	if r.Profile == "" {
		r.Profile = profStrict
	}
	if r.UIDMode == "" {
		r.UIDMode = uidSetpriv
	}
	if r.ShareNet == nil {
		shared := true
		r.ShareNet = &shared
	}
	if err := r.checkWords(); err != nil {
		return err
	}
	switch {
	case r.UID == nil && r.GID != nil:
		return invalid("gid without uid")
	case r.UID != nil && *r.UID == anyUser, r.GID != nil && *r.GID == anyUser:
		return invalid("%d is not the number of an account or group", uint32(anyUser))
	case r.Idle != nil && (*r.Idle < 0 || *r.Idle > maxIdle):
		return invalid("idle_timeout_seconds is negative or too large")
	case len(r.Writable)+len(r.Binds) > maxBinds:
		return invalid("more than %d entries of binds and extra_writable", maxBinds)
	}
	if r.UID == nil {
		uid := uint32(os.Geteuid())
		r.UID = &uid
	}
	if r.GID == nil {
		gid := account(*r.UID)
		r.GID = &gid
	}
	return r.checkPaths()
}

func invalid(format string, args ...any) error {
	return refuse(http.StatusBadRequest, wire.CodeInvalidBody, format, args...)
}

func (r *Request) checkWords() error {
	switch r.Workspace.Mode {
	case modeRW, modeRO:
	case modeLayer:
		return refuse(http.StatusServiceUnavailable, CodeUnsupported, "workspaces that are copies (mode overlay) aren't supported; use rw or ro")
	default:
		return invalid("workspace.mode is none of rw, ro and overlay")
	}
	if o := string(r.Overlays); o != "" && o != "null" && o != "[]" {
		return refuse(http.StatusServiceUnavailable, CodeUnsupported, "directories that are copies (overlays) aren't supported; use binds")
	}
	r.Overlays = nil
	switch r.UIDMode {
	case uidSetpriv:
	case uidUserNS:
		return refuse(http.StatusServiceUnavailable, CodeUnsupported, "sessions with a user namespace of their own (uid_mode userns) aren't supported; use setpriv")
	default:
		return invalid("uid_mode is neither setpriv nor userns")
	}
	if r.Profile != profStrict && r.Profile != profShared {
		return invalid("profile is neither strict nor balanced")
	}
	if r.Env != nil {
		switch {
		case r.Env.Mode != "" && r.Env.Mode != envDeny && r.Env.Mode != envAllow:
			return invalid("env_passthrough.mode is neither allow nor deny")
		case len(r.Env.Keys) > maxKeys:
			return invalid("more than %d env_passthrough.keys", maxKeys)
		}
	}
	return nil
}

// checkPaths looks at every path, and at the sources themselves, so that a
// mistake has its own answer. The session looks again.
func (r *Request) checkPaths() error {
	places := map[string]string{} // the fields that name them
	if err := checkPlace("workspace.path", r.Workspace.Path, places); err != nil {
		return err
	}
	sources := map[string]bool{r.Workspace.Source: true} // true: a directory is needed
	if err := checkPath("workspace.source", r.Workspace.Source); err != nil {
		return err
	}
	for _, p := range r.Writable {
		if err := checkPlace("extra_writable", p, places); err != nil {
			return err
		}
		sources[p] = sources[p] || false
	}
	for i := range r.Binds {
		b := &r.Binds[i]
		if b.Dest == "" {
			b.Dest = b.Source
		}
		if err := checkPath("binds.source", b.Source); err != nil {
			return err
		}
		if err := checkPlace("binds.dest", b.Dest, places); err != nil {
			return err
		}
		sources[b.Source] = sources[b.Source] || false
	}
	for source, dir := range sources {
		fi, err := os.Lstat(source)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return badRequest("%s doesn't exist; make it first, with the session's account as its owner", source)
		case err != nil:
			return badSource(source, err)
		case fi.Mode()&fs.ModeSymlink != 0:
			return badSource(source, errLink(path.Clean(source)))
		case dir && !fi.IsDir():
			return badRequest("%s is not a directory", source)
		}
		fd, err := openSource(source)
		if err != nil {
			return err
		}
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	}
	return nil
}

// checkPath refuses what isn't absolute, or isn't the shortest way to say it.
func checkPath(field, p string) error {
	switch {
	case !filepath.IsAbs(p):
		return invalid("%s is not an absolute path", field)
	case len(p) > maxPath, strings.ContainsRune(p, 0):
		return invalid("%s is no path that there can be", field)
	case path.Clean(p) == "/":
		return invalid("%s is the root directory", field)
	case slices.Contains(strings.Split(p, "/"), ".."), slices.Contains(strings.Split(p, "/"), "."):
		return invalid("%s has a part . or ..", field)
	}
	return nil
}

// kept are directories of the system that a session, or every program in it,
// needs as they are.
var kept = []string{
	"/dev", "/etc", "/proc", "/run", "/sys", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr",
	"/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/sbin",
}

// checkPlace refuses a path at which a session can't see anything of the
// sandbox's, and one that another field has named.
func checkPlace(field, p string, places map[string]string) error {
	if err := checkPath(field, p); err != nil {
		return err
	}
	p = path.Clean(p)
	const instead = "choose a place below /tmp, /run or /dev/shm, or another directory that exists in the sandbox"
	other, twice := places[p]
	switch {
	case strings.HasPrefix(p, "/dev/shm/"):
	case within(p, "/dev"), within(p, "/proc"), within(p, "/sys"):
		return invalid("%s is %s, but /dev, /proc and /sys are the session's own; %s", field, p, instead)
	case slices.Contains(kept, p):
		return invalid("%s is %s, which the session needs as it is; %s", field, p, instead)
	}
	if twice {
		return invalid("%s and %s are both %s, so that one would hide the other; leave one out", other, field, p)
	}
	places[p] = field
	return nil
}

// view is what the session is to see.
func (r *Request) view(tmpBytes int64) View {
	v := View{
		OwnNet:    !*r.ShareNet,
		Workspace: Bind{Source: r.Workspace.Source, Path: path.Clean(r.Workspace.Path), ReadOnly: r.Workspace.Mode == modeRO},
		SharedTmp: r.Profile == profShared,
		TmpBytes:  tmpBytes,
	}
	for _, p := range r.Writable {
		v.Binds = append(v.Binds, Bind{Source: p, Path: path.Clean(p)})
	}
	for _, b := range r.Binds {
		v.Binds = append(v.Binds, Bind{Source: b.Source, Path: path.Clean(b.Dest), ReadOnly: b.ReadOnly})
	}
	return v
}

func (r *Request) idle() time.Duration {
	if r.Idle == nil {
		return 0
	}
	return time.Duration(*r.Idle) * time.Second
}

// secret reports variables whose names say that they hold one, and those that
// are the daemon's own.
func secret(name string) bool {
	for _, suffix := range []string{"_API_KEY", "_TOKEN", "_SECRET", "_PASSWORD"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	for _, prefix := range []string{"AWS_", "ALI_", "ALIYUN_", "K8S_", "KUBE_", "EXECD_", "JUPYTER_", "ASTRABOX_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// plain are variables that every session has: none of them tells anything.
var plain = []string{"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM"}

// environ is the part of all that the session gets.
func (r *Request) environ(all []string) (env []string) {
	var keys []string
	allow := false
	if r.Env != nil {
		keys, allow = r.Env.Keys, r.Env.Mode == envAllow
	}
	for _, kv := range all {
		name, _, _ := strings.Cut(kv, "=")
		listed := slices.Contains(keys, name)
		switch {
		case strings.HasPrefix(name, "EXECD_"): // never, whatever is asked for
		case name == "TMPDIR" && !listed: // the session has its own /tmp, and little else that it may write to
		case slices.Contains(plain, name) && (allow || !listed), allow && listed, !allow && !listed && !secret(name):
			env = append(env, kv)
		}
	}
	return env
}
