package files

import (
	"hash/maphash"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// maxBody limits a JSON body.
const maxBody = 4 << 20

// Config is what the service needs to know. The zero value is right inside a
// sandbox.
type Config struct {
	Accounts *account.DB // nil: those of /etc/passwd and /etc/group
	// Notes, which all services of a daemon share, let its successor remove what
	// has an unfinished name when it is killed. nil: none.
	Notes *Notes
	// Root, where it isn't nil, is an open directory, with its absolute path as
	// its name, that the older interface is confined to; its relative paths
	// begin there. (A request of files.v1 says itself what it is confined to.)
	Root *os.File
	// UID and GID own what a request makes without naming an owner.
	UID, GID uint32
}

var anywhere = &scope{fd: unix.AT_FDCWD}

type service struct {
	all        *scope   // of the older interface
	root       *os.File // keeps all open
	uid, gid   uint32   // of what nobody is named the owner of
	accounts   *account.DB
	publishing *publishing // shared with the services of accounts
	notes      *Notes
	hidden     sync.Map // names of unfinished files, which listings leave out
	sessions   sessions
	watchers   atomic.Int64
	main       *service // that this one serves an account for; nil: it is that itself
}

// Features are those that the handler of [New] has, for the feature document.
func Features() []string {
	return []string{wire.FeatureFiles, wire.FeatureArchive, wire.FeatureWatch, wire.FeatureSearch, wire.FeatureUpload}
}

// New gives the handler of /v1/fs/, /v1/filesystem/, /files, /files/,
// /directories and /directories/. It answers 404 to every other path.
func New(c Config) http.Handler {
	if c.Accounts == nil {
		c.Accounts = account.System
	}
	s := &service{all: anywhere, uid: c.UID, gid: c.GID, root: c.Root, accounts: c.Accounts, publishing: &publishing{seed: maphash.MakeSeed()}, notes: c.Notes}
	if c.Root != nil {
		s.all = &scope{fd: int(c.Root.Fd()), root: strings.TrimRight(c.Root.Name(), "/"), held: true}
	}
	routes := map[string]func(http.ResponseWriter, *http.Request) error{
		"GET " + wire.PathStat:     s.stat,
		"GET " + wire.PathList:     s.list,
		"GET " + wire.PathSearch:   s.search,
		"GET " + wire.PathContent:  s.read,
		"HEAD " + wire.PathContent: s.read,
		"PUT " + wire.PathContent:  s.write,
		"POST " + wire.PathMakeDir: s.makeDir,
		"POST " + wire.PathAttr:    s.setAttr,
		"POST " + wire.PathRename:  s.rename,
		"POST " + wire.PathRemove:  s.remove,

		"GET " + wire.PathArchive:       s.archive,
		"POST " + wire.PathExtract:      s.extract,
		"GET " + wire.PathWatch:         s.watch,
		"GET " + wire.PathGrep:          s.grep,
		"POST " + wire.PathUploads:      s.startUpload,
		"GET " + wire.PathUploads:       s.uploadStatus,
		"PATCH " + wire.PathUploads:     s.continueUpload,
		"DELETE " + wire.PathUploads:    s.dropUpload,
		"POST " + wire.PathUploadFinish: s.finishUpload,
	}
	old := s.legacy()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Method + " " + r.URL.Path
		if h, ok := routes[key]; ok {
			if err := h(w, r); err != nil {
				refuse(w, err)
			}
			return
		}
		if h, ok := old[key]; ok {
			if err := h(w, r); err != nil {
				refuseLegacy(w, err)
			}
			return
		}
		if path, ok := strings.CutPrefix(r.URL.Path, accountPrefix); ok {
			s.asAccount(w, r, path)
			return
		}
		http.NotFound(w, r)
	})
}

// parameters reads those of a request. A parameter that isn't among known,
// or is given twice (root apart), is refused.
func parameters(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, failf(wire.CodePathInvalid, "the query can't be read: %s", err)
	}
	for key, values := range q {
		if key != "path" && key != "root" && !slices.Contains(known, key) {
			return nil, failf(wire.CodePathInvalid, "unknown parameter %s", strconv.QuoteToASCII(key))
		}
		if key != "root" && len(values) > 1 {
			return nil, failf(wire.CodePathInvalid, "parameter %s is given twice", key)
		}
	}
	return q, nil
}

// query reads the parameters of a request that names a path.
func (s *service) query(r *http.Request, known ...string) (url.Values, error) {
	q, err := parameters(r, known...)
	if err == nil {
		q["root"] = s.roots(q["root"])
	}
	return q, err
}

// roots are the directories that a request is confined to. Where the service has
// a root of its own, no request leaves that, whether it asks for it or not.
func (s *service) roots(asked []string) []string {
	if s.root == nil {
		return asked
	}
	return append([]string{s.root.Name()}, asked...)
}

// body reads a JSON body into out.
func body(r *http.Request, out any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return &failure{code: wire.CodeIncompleteBody, message: "the body ended early", cause: err}
	}
	if len(b) > maxBody {
		return failf(wire.CodePathInvalid, "the body is larger than %d bytes", maxBody)
	}
	if err := wire.DecodeStrict(b, out); err != nil {
		return failf(wire.CodePathInvalid, "the body can't be read: %s", err)
	}
	return nil
}

func (s *service) scopeOf(at wire.Scope) (*scope, string, error) {
	sc, err := newScope(s.roots(wire.JoinTexts(at.Roots, at.RootsB64)))
	return sc, wire.JoinText(at.Path, at.PathB64), err
}
