// Package console serves the web console that is built into the program.
//
// The composition root hands [Handler] to the HTTP API, which calls it for
// every path that is none of its own. The console is one page: a path that is
// no file gets index.html, so that an address like /c/conv_… can be opened and
// reloaded. It keeps no state and is safe for concurrent use.
package console

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/astrabox/astrabox/web"
)

// policy lets the page run its own scripts and nothing else. Styles may be
// inline because the terminal and the editor insert style elements; images may
// be blob: because previews of workspace files are made in the page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; " +
	"img-src 'self' blob: data:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the console, or the page that says how to build it.
func Handler() http.Handler {
	files, built := web.Console()
	return newHandler(files, built)
}

func newHandler(files fs.FS, built bool) http.Handler {
	return &handler{files: files, built: built}
}

type handler struct {
	files fs.FS
	built bool
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "This address takes GET only.", http.StatusMethodNotAllowed)
		return
	}
	name := strings.TrimPrefix(path.Clean("/"+r.URL.Path), "/")
	if !h.built {
		// The placeholder stands alone: its folder may hold other things.
		name = "index.html"
	}
	content, err := fs.ReadFile(h.files, name)
	if err != nil {
		if strings.HasPrefix(name, "assets/") || strings.HasPrefix(name, ".") {
			http.NotFound(w, r)
			return
		}
		name = "index.html"
		if content, err = fs.ReadFile(h.files, name); err != nil {
			http.NotFound(w, r)
			return
		}
	}
	header := w.Header()
	header.Set("Content-Type", contentType(name))
	if strings.HasPrefix(name, "assets/") {
		// The names of assets carry a hash of their content.
		header.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else {
		sum := sha256.Sum256(content)
		header.Set("ETag", fmt.Sprintf("%q", base64.RawURLEncoding.EncodeToString(sum[:16])))
		header.Set("Cache-Control", "no-cache")
	}
	if name == "index.html" {
		header.Set("Content-Security-Policy", policy)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// contentType knows the few kinds of files that a console has, so that the
// answer doesn't depend on the machine's own table.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".json", ".map":
		return "application/json"
	case ".woff2":
		return "font/woff2"
	case ".png":
		return "image/png"
	case ".ico":
		return "image/x-icon"
	case ".webmanifest":
		return "application/manifest+json"
	}
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}
