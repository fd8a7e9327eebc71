package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/sandbox"
)

// twin makes a second sandbox with the metadata of a spec through the bundled
// service's own API, past the provider, which would give the first one again.
func twin(state string) func(context.Context, sandbox.CreateSpec) (string, error) {
	return func(ctx context.Context, spec sandbox.CreateSpec) (string, error) {
		service, err := sandboxd.ReadListening(state)
		if err != nil {
			return "", err
		}
		key, err := sandboxd.ReadKey(state)
		if err != nil {
			return "", err
		}
		seconds := int64(spec.TTL / time.Second)
		body, err := json.Marshal(wire.CreateRequest{
			Image: &wire.Image{URI: spec.Image}, Entrypoint: []string{"tail", "-f", "/dev/null"}, Timeout: &seconds,
			ResourceLimits: spec.ResourceLimits, ResourceRequests: spec.ResourceRequests, Metadata: spec.OwnershipMetadata(),
		})
		if err != nil {
			return "", err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, service.URL+"/sandboxes", bytes.NewReader(body))
		if err != nil {
			return "", err
		}
		req.Close = true
		req.Header.Set(wire.HeaderKey, key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		var made wire.Sandbox
		if err := json.NewDecoder(resp.Body).Decode(&made); err != nil {
			return "", fmt.Errorf("the service answered %s: %w", resp.Status, err)
		}
		if made.ID == "" {
			return "", fmt.Errorf("the service answered %s without a sandbox", resp.Status)
		}
		return made.ID, nil
	}
}
