package execd

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/astrabox/astrabox/sandbox"
)

// account is a user of the sandbox.
type account struct {
	name, home, shell string
	uid, gid          uint32
	groups            []uint32 // gid is among them
}

// accountFileLimit bounds each of the two account files.
const accountFileLimit = 4 << 20

var accountName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

// account finds a user by name in the sandbox's account files.
func (f foreign) account(ctx context.Context, name string) (*account, error) {
	if !accountName.MatchString(name) {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "%q is not the name of an account", name)
	}
	users, err := f.read(ctx, "/etc/passwd", accountFileLimit)
	if err != nil {
		return nil, err
	}
	groups, err := f.read(ctx, "/etc/group", accountFileLimit)
	if err != nil {
		return nil, err
	}
	if u := findAccount(name, users, groups); u != nil {
		return u, nil
	}
	return nil, sandbox.Errorf(sandbox.CodeInvalid, "the sandbox has no account %q", name)
}

func findAccount(name string, users, groups []byte) *account {
	var u *account
	for line := range bytes.Lines(users) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) < 7 || f[0] != name {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		u = &account{name: name, uid: uint32(uid), gid: uint32(gid), home: f[5], shell: f[6]}
		break
	}
	if u == nil {
		return nil
	}
	if u.home == "" {
		u.home = "/"
	}
	if u.shell == "" {
		u.shell = "/bin/sh"
	}
	u.groups = []uint32{u.gid}
	for line := range bytes.Lines(groups) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) < 4 || !slices.Contains(strings.Split(f[3], ","), name) {
			continue
		}
		if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil && !slices.Contains(u.groups, uint32(gid)) {
			u.groups = append(u.groups, uint32(gid))
		}
	}
	return u
}

// read gives a small regular file; nil when it isn't there. Its path has no
// character that a foreign execd would expand.
func (f foreign) read(ctx context.Context, path string, limit int64) ([]byte, error) {
	resp, err := f.c.do(ctx, request{
		method: http.MethodGet, path: "/files/download", query: url.Values{"path": {path}}.Encode(),
	})
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, startError(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	return b, unreachable(ctx, err)
}
