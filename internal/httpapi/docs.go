package httpapi

import (
	"bytes"
	"embed"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

// docFiles are a page that reads /openapi.json and lets one try the routes. It
// comes from this server alone: a page that could call this API must not run
// scripts from elsewhere.
//
//go:embed docs/index.html docs/docs.js docs/docs.css
var docFiles embed.FS

const docPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (s *Server) docRoutes() {
	for _, f := range []struct{ path, file, kind string }{
		{"GET /docs", "docs/index.html", "text/html; charset=utf-8"},
		{"GET /docs/docs.js", "docs/docs.js", "text/javascript; charset=utf-8"},
		{"GET /docs/docs.css", "docs/docs.css", "text/css; charset=utf-8"},
	} {
		s.mux.HandleFunc(f.path, func(w http.ResponseWriter, r *http.Request) {
			content, err := docFiles.ReadFile(f.file)
			if err != nil {
				s.fail(w, r, err) // not possible: the embed pattern names the file
				return
			}
			w.Header().Set("Content-Type", f.kind)
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("Content-Security-Policy", docPolicy)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		})
	}
}

// documentStreams describes the routes that huma doesn't serve.
func (s *Server) documentStreams() {
	doc := s.api.OpenAPI()
	schemas := doc.Components.Schemas
	problemSchema := schemas.Schema(problemType, true, "Problem")
	param := func(name, in, text string, required bool, kind *huma.Schema) *huma.Param {
		return &huma.Param{Name: name, In: in, Description: text, Required: required, Schema: kind}
	}
	str, num := &huma.Schema{Type: huma.TypeString}, &huma.Schema{Type: huma.TypeInteger, Format: "int64"}
	convID := param("id", "path", "Id of the conversation.", true, str)
	pathParam := param("path", "query", "Absolute path below /workspace.", true, str)
	binary := map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}
	entry := map[string]*huma.MediaType{"application/json": {Schema: schemas.Schema(reflect.TypeFor[wire.FileEntry](), true, "FileEntry")}}
	list := map[string]*huma.MediaType{"application/json": {Schema: schemas.Schema(reflect.TypeFor[wire.FileList](), true, "FileList")}}
	events := map[string]*huma.MediaType{"text/event-stream": {Schema: schemas.Schema(reflect.TypeFor[model.Event](), true, "Event")}}
	add := func(method, path, id, tag, summary, text string, params []*huma.Param, in *huma.RequestBody, out map[int]*huma.Response) {
		responses := map[string]*huma.Response{"default": {Description: "Error", Content: map[string]*huma.MediaType{"application/problem+json": {Schema: problemSchema}}}}
		for status, r := range out {
			responses[strconv.Itoa(status)] = r
		}
		doc.AddOperation(&huma.Operation{OperationID: id, Method: method, Path: path, Tags: []string{tag}, Summary: summary, Description: text,
			Parameters: params, RequestBody: in, Responses: responses})
	}
	add("GET", oneConversation+"/events/stream", "stream-events", "events", "Follow the journal live",
		"Server-sent events: `id` is the event's number, `data` the event as JSON. Reconnecting with Last-Event-ID goes on without a gap. A comment comes every 15 s. A failure is an event named `error` with a problem as its data.",
		[]*huma.Param{convID, param("after", "query", "Only events with a greater number.", false, num), param("Last-Event-ID", "header", "Wins over after.", false, num)},
		nil, map[int]*huma.Response{200: {Description: "The stream", Content: events}})
	add("GET", oneConversation+"/files", "list-files", "files", "List a folder", "In lexical order, children after their parent. Links are not followed.",
		[]*huma.Param{convID, param("path", "query", "Absolute path below /workspace; default /workspace.", false, str), param("depth", "query", "How many levels, 1 to 32; default 1.", false, num)},
		nil, map[int]*huma.Response{200: {Description: "The folder", Content: list}})
	add("GET", oneConversation+"/files/content", "read-file", "files", "Download a file", "Of any size. Takes Range, If-Range, If-Match and If-None-Match; the ETag is the file's version.",
		[]*huma.Param{convID, pathParam, param("Range", "header", "One range of bytes.", false, str)},
		nil, map[int]*huma.Response{200: {Description: "The content", Content: binary}, 206: {Description: "A range of it", Content: binary}, 304: {Description: "Not modified"}})
	add("GET", oneConversation+"/files/archive", "archive-folder", "files", "Download a folder as one file",
		"It is made while it is sent: links stay links, sockets and devices are left out, and so is what vanishes meanwhile. A connection that closes early means that it isn't whole. A zip takes 50,000 files.",
		[]*huma.Param{convID, param("path", "query", "Absolute path below /workspace; default /workspace.", false, str),
			param("format", "query", "Default zip.", false, &huma.Schema{Type: huma.TypeString, Enum: []any{string(sandbox.ArchiveZip), string(sandbox.ArchiveTar), string(sandbox.ArchiveTarGzip)}})},
		nil, map[int]*huma.Response{200: {Description: "The archive", Content: map[string]*huma.MediaType{
			"application/zip": binary["application/octet-stream"], "application/x-tar": binary["application/octet-stream"], "application/gzip": binary["application/octet-stream"],
		}}})
	add("PUT", oneConversation+"/files/content", "write-file", "files", "Write a file", "In one step: a broken upload changes nothing. A new file gets mode 0640 and belongs to the conversation's account; one that is there keeps its mode.",
		[]*huma.Param{convID, pathParam, param("If-Match", "header", "Only over this version, in quotes; else 412.", false, str), param("If-None-Match", "header", "With *: only if there is no such file.", false, str)},
		&huma.RequestBody{Required: true, Content: binary}, map[int]*huma.Response{200: {Description: "Written", Content: entry}, 201: {Description: "Made", Content: entry}})
	add("GET", oneConversation+"/terminals/{tid}/attach", "attach-terminal", "terminals", "Attach to a terminal (WebSocket)",
		"Subprotocol `astrabox.terminal.v1`. The server's binary frames are an 8-byte big-endian offset and bytes of output; its text frames have the types ready {mode, offset}, exit {code, signal}, displaced, gap {oldest}, error {code, message} and pong. "+
			"The client's binary frames are input; its text frames are resize {cols, rows}, signal {name} and ping. What the server refuses comes as an error frame before the close, because browsers hide the HTTP answer of a failed WebSocket.",
		[]*huma.Param{convID, param("tid", "path", "Id of the terminal.", true, str), param("since", "query", "Offset from where output is wanted; without it all that is held.", false, num),
			param("mode", "query", "write, takeover or watch; default write.", false, &huma.Schema{Type: huma.TypeString, Enum: []any{modeWrite, modeTakeover, modeWatch}})},
		nil, map[int]*huma.Response{101: {Description: "Upgraded"}})
	for _, probe := range []struct{ path, id, text string }{{"/healthz", "health", "The process is alive."}, {"/readyz", "ready", "New work is welcome; 503 while the server stops."}} {
		add("GET", probe.path, probe.id, "server", probe.text, "", nil, nil,
			map[int]*huma.Response{200: {Description: "Yes", Content: map[string]*huma.MediaType{"application/json": {Schema: schemas.Schema(reflect.TypeFor[wire.Health](), true, "Health")}}}})
	}
}
