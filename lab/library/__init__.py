"""Models as timm, torchvision and transformers build them from configurations, and a step that trains one."""
