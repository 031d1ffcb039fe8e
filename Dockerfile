# By choice: everything works without it. Build: docker build -t openclaw-rl .
# Run: docker run -e OPENCLAW_API_KEY=choose-a-long-secret -p 127.0.0.1:8000:8000 -v openclaw-rl:/home/openclaw/.openclaw-rl openclaw-rl
# Clients send that key. In a container the gateway binds all addresses, and without a key it refuses to.
# Look inside: docker exec CONTAINER openclaw-rl status
FROM python:3.11-slim

RUN useradd --create-home openclaw
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir ".[local]"

# The folder is there before the volume is, so that the volume belongs to this user.
USER openclaw
RUN mkdir -m 700 /home/openclaw/.openclaw-rl

# Nobody reaches the loopback address of a container. `-p` decides which addresses of the host reach the gateway.
EXPOSE 8000
ENTRYPOINT ["openclaw-rl"]
CMD ["up", "--host", "0.0.0.0"]
