package api_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
)

// The official description of the API isn't part of this repository. Where it
// is at hand, in $OPENSANDBOX_SPECS or in ../shared/specs beside the
// repository, every answer in these tests is checked against it.
const specName = "sandbox-lifecycle.yml"

var contract = sync.OnceValues(func() (routers.Router, error) {
	dir := os.Getenv("OPENSANDBOX_SPECS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared", "specs")
	}
	path := filepath.Join(dir, specName)
	if _, err := os.Stat(path); err != nil {
		return nil, nil
	}
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromFile(path)
	if err != nil {
		return nil, err
	}
	doc.Servers = nil // paths are matched without their base
	return legacy.NewRouter(doc)
})

func TestContractIsChecked(t *testing.T) {
	router, err := contract()
	if err != nil {
		t.Fatal(err)
	}
	if router == nil {
		t.Skipf("%s is not here; set OPENSANDBOX_SPECS to its directory", specName)
	}
	// A wrong answer must be noticed, or the checks are worth nothing.
	req, _ := http.NewRequest(http.MethodGet, "http://127.0.0.1/v1/sandboxes/a", nil)
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}}
	if err := conforms(router, req, resp, []byte(`{"id":"a"}`)); err == nil {
		t.Error("an incomplete sandbox passed")
	}
}

// checkContract fails the test when an answer isn't what the description says.
// Statuses that only this service gives (405, 413, 501, 503) are not described.
func checkContract(t *testing.T, req *http.Request, resp *http.Response, body []byte) {
	t.Helper()
	router, err := contract()
	if err != nil {
		t.Fatal(err)
	}
	if router == nil || !strings.HasPrefix(req.URL.Path, "/v1/") || strings.Contains(req.URL.Path, "/proxy/") {
		return
	}
	switch resp.StatusCode {
	case http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge, http.StatusNotImplemented, http.StatusBadGateway, http.StatusServiceUnavailable:
		return
	}
	if err := conforms(router, req, resp, body); err != nil {
		t.Errorf("%s %s → %d %s: %v", req.Method, req.URL, resp.StatusCode, body, err)
	}
}

func conforms(router routers.Router, req *http.Request, resp *http.Response, body []byte) error {
	req = req.Clone(context.Background())
	req.URL = &url.URL{Path: strings.TrimPrefix(req.URL.Path, "/v1"), RawQuery: req.URL.RawQuery}
	route, params, err := router.FindRoute(req)
	if err != nil {
		return nil //nolint:nilerr // a path that isn't of the described API
	}
	if route.Operation.Responses.Status(resp.StatusCode) == nil {
		switch resp.StatusCode { // refusals that may come at any path
		case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusConflict:
			return nil
		}
	}
	return openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
		Status:                 resp.StatusCode, Header: resp.Header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
}
